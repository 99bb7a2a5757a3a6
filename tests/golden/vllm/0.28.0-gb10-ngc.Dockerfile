# vllm for gb10 on ngc: vLLM: an OpenAI-compatible server for large language models, with FlashInfer
# Generated from templates/vllm-ngc.Dockerfile.j2 by `nox -s render`; edit the template, pins.yaml or image.yaml instead.
# `build-root`, `runtime-root` and `inputs` are named build contexts: pinned content that `nox -s fetch` has verified.
# The build command carries `--network none`, the memory cap and the secrets `limits` and `profile`; `nox -s build-vllm` does it all.

FROM build-root AS compile
ARG SOURCE_DATE_EPOCH=1787738910
RUN --mount=type=bind,source=.,target=/spark/scripts \
    --mount=type=bind,from=inputs,source=.,target=/spark/inputs \
    --mount=type=cache,id=spark-images-ccache,target=/spark/cache \
    --mount=type=secret,id=limits --mount=type=secret,id=profile \
    /spark/scripts/step base /spark/scripts/ngc_base look /base 3.12 sm_121a /usr/local/cuda/bin/ptxas torch=2.10.0a0 torchvision=0.25.0a0 triton=3.6.0 numpy=2.1.0 cuda=13.1.1
RUN --mount=type=bind,source=.,target=/spark/scripts \
    --mount=type=bind,from=inputs,source=.,target=/spark/inputs \
    --mount=type=cache,id=spark-images-ccache,target=/spark/cache \
    --mount=type=secret,id=limits --mount=type=secret,id=profile \
    /spark/scripts/step install /spark/scripts/install_wheels 3.12 /spark/inputs/layers /out build_backend.py xgrammar/lib/libxgrammar.a
RUN --mount=type=bind,source=.,target=/spark/scripts \
    --mount=type=bind,from=inputs,source=.,target=/spark/inputs \
    --mount=type=cache,id=spark-images-ccache,target=/spark/cache \
    --mount=type=secret,id=limits --mount=type=secret,id=profile \
    /spark/scripts/step compile env SPARK_CUDA=/usr/local/cuda SPARK_TORCH=/usr/local/lib/python3.12/dist-packages/torch TORCH_CUDA_ARCH_LIST=12.1a VLLM_MAIN_CUDA_VERSION=13.1 VLLM_TARGET_DEVICE=cuda CMAKE_BUILD_TYPE=Release NVCC_THREADS=1 VLLM_DISABLE_SCCACHE=1 VLLM_CUTLASS_SRC_DIR=/build/trees/cutlass FLASH_MLA_SRC_DIR=/build/trees/flashmla QUTLASS_SRC_DIR=/build/trees/qutlass TRITON_KERNELS_SRC_DIR=/build/trees/triton-kernels/python/triton_kernels/triton_kernels DEEPGEMM_SRC_DIR=/build/trees/deepgemm FMHA_SM100_SRC_DIR=/build/trees/fmha-sm100 TML_FA4_SRC_DIR=/build/trees/tml-fa4 FLASH_KDA_SRC_DIR=/build/trees/flashkda 'CMAKE_ARGS=-DFETCHCONTENT_FULLY_DISCONNECTED=ON -DFETCHCONTENT_SOURCE_DIR_VLLM-FLASH-ATTN=/build/trees/vllm-flash-attn -DCUTLASS_INCLUDE_DIR=/build/trees/cutlass/include -DCUTLASS_TOOLS_UTIL_INCLUDE_DIR=/build/trees/cutlass/tools/util/include' /spark/scripts/compile_vllm arm64 --existing-torch use_existing_torch.py --patch /spark/scripts/patches/leave-out-fa3.patch

FROM runtime-root
RUN --mount=type=bind,source=.,target=/spark/scripts \
    --mount=type=bind,from=inputs,source=.,target=/spark/inputs \
    --mount=type=cache,id=spark-images-ccache,target=/spark/cache \
    --mount=type=secret,id=limits --mount=type=secret,id=profile \
    /spark/scripts/step clear /spark/scripts/ngc_base clear 3.12 flash-attn vllm flashinfer-python --keep torch torchvision triton numpy --folder 10001:10001 /models /cache
COPY --from=compile /out/python/ /
COPY --from=flashinfer /usr/local/ /usr/local/
COPY --from=compile /out/vllm/ /
RUN --mount=type=bind,source=.,target=/spark/scripts \
    --mount=type=bind,from=compile,source=/base,target=/spark/inputs \
    --mount=type=cache,id=spark-images-ccache,target=/spark/cache \
    --mount=type=secret,id=limits --mount=type=secret,id=profile \
    /spark/scripts/step prove /spark/scripts/ngc_base prove /spark/inputs/facts 3.12 --absent flash-attn
ENV HOME="/tmp"
ENV USER="spark"
ENV NVIDIA_VISIBLE_DEVICES="all"
ENV NVIDIA_DRIVER_CAPABILITIES="compute,utility"
ENV CUDA_HOME="/usr/local/cuda"
ENV TORCH_CUDA_ARCH_LIST="12.1a"
ENV FLASHINFER_CUDA_ARCH_LIST="12.1a"
ENV TRITON_PTXAS_PATH="/usr/local/cuda/bin/ptxas"
ENV HF_HOME="/models"
ENV VLLM_CACHE_ROOT="/cache/vllm"
ENV TRITON_CACHE_DIR="/cache/triton"
ENV CUDA_CACHE_PATH="/cache/cuda"
ENV CUDA_CACHE_MAXSIZE="4294967296"
ENV FLASHINFER_WORKSPACE_BASE="/cache"
ENV FLASHINFER_NO_DOWNLOAD="1"
ENV MAX_JOBS="4"
LABEL io.spark-images.base="ngc"
LABEL io.spark-images.pins="{\"build-tools\":\"4.4.4 cmake==4.4.4 ninja==1.13.2\",\"ngc-pytorch\":\"nvcr.io/nvidia/pytorch:26.01-py3@sha256:38ed2ecb2c16d10677006d73fb0a150855d6ec81db8fc66e800b5ae92741007e\",\"vllm\":\"0.28.0 sha256:ac96dd0ec5be9c13f2aa4bfb50498c4727110406f6e4980b58a4097e4d18634a\",\"vllm-build\":\"80.10.2 setuptools==80.10.2 setuptools-scm==10.3.4 vcs-versioning==2.6.0 wheel==0.48.0\",\"vllm-gb10-ngc\":\"vllm==0.28.0 flashinfer-python==0.6.16.post3 2026-11-20T00:00:00Z\"}"
LABEL io.spark-images.target="gb10"
LABEL org.opencontainers.image.description="vLLM: an OpenAI-compatible server for large language models, with FlashInfer"
LABEL org.opencontainers.image.licenses="Apache-2.0 AND BSD-3-Clause AND LicenseRef-NVIDIA-CUDA-Toolkit"
LABEL org.opencontainers.image.source="https://github.com/vllm-project/vllm"
LABEL org.opencontainers.image.title="vllm"
LABEL org.opencontainers.image.version="0.28.0"
EXPOSE 8000/tcp
STOPSIGNAL SIGTERM
USER 10001:10001
CMD ["vllm", "serve"]
