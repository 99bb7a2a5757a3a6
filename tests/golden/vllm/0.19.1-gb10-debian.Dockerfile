# vllm for gb10 on debian: vLLM: an OpenAI-compatible server for large language models, with FlashInfer
# Generated from templates/vllm.Dockerfile.j2 by `nox -s render`; edit the template, pins.yaml or image.yaml instead.
# `build-root`, `runtime-root` and `inputs` are named build contexts: pinned content that `nox -s fetch` has verified.
# The build command carries `--network none`, the memory cap and the secrets `limits` and `profile`; `nox -s build-vllm` does it all.

FROM build-root AS compile
ARG SOURCE_DATE_EPOCH=1776491415
RUN --mount=type=bind,source=.,target=/spark/scripts \
    --mount=type=bind,from=inputs,source=.,target=/spark/inputs \
    --mount=type=cache,id=spark-images-ccache,target=/spark/cache \
    --mount=type=secret,id=limits --mount=type=secret,id=profile \
    /spark/scripts/step install /spark/scripts/install_layers 3.11 /spark/inputs/layers build_backend.py triton/backends/nvidia/lib/cupti/libcupti_static.a xgrammar/lib/libxgrammar.a
RUN --mount=type=bind,source=.,target=/spark/scripts \
    --mount=type=bind,from=inputs,source=.,target=/spark/inputs \
    --mount=type=cache,id=spark-images-ccache,target=/spark/cache \
    --mount=type=secret,id=limits --mount=type=secret,id=profile \
    /spark/scripts/step compile env TORCH_CUDA_ARCH_LIST=12.0f VLLM_MAIN_CUDA_VERSION=13.0 VLLM_TARGET_DEVICE=cuda CMAKE_BUILD_TYPE=Release NVCC_THREADS=1 VLLM_DISABLE_SCCACHE=1 VLLM_CUTLASS_SRC_DIR=/build/trees/cutlass FLASH_MLA_SRC_DIR=/build/trees/flashmla QUTLASS_SRC_DIR=/build/trees/qutlass TRITON_KERNELS_SRC_DIR=/build/trees/triton-kernels/python/triton_kernels/triton_kernels 'CMAKE_ARGS=-DFETCHCONTENT_FULLY_DISCONNECTED=ON -DFETCHCONTENT_SOURCE_DIR_VLLM-FLASH-ATTN=/build/trees/vllm-flash-attn -DCUTLASS_INCLUDE_DIR=/build/trees/cutlass/include -DCUTLASS_TOOLS_UTIL_INCLUDE_DIR=/build/trees/cutlass/tools/util/include' /spark/scripts/compile_vllm arm64 --patch /spark/scripts/patches/leave-out-fa3.patch --patch /spark/scripts/patches/leave-out-cutlass-mla.patch

FROM runtime-root
COPY --from=compile /out/cuda/ /
COPY --from=compile /out/torch/ /
COPY --from=compile /out/python/ /
COPY --from=flashinfer /usr/local/ /usr/local/
COPY --from=compile /out/vllm/ /
ENV NVIDIA_VISIBLE_DEVICES="all"
ENV NVIDIA_DRIVER_CAPABILITIES="compute,utility"
ENV PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/cuda/bin"
ENV CUDA_HOME="/usr/local/cuda"
ENV TORCH_CUDA_ARCH_LIST="12.1a"
ENV FLASHINFER_CUDA_ARCH_LIST="12.1a"
ENV TRITON_PTXAS_PATH="/usr/local/cuda/bin/ptxas"
ENV SSL_CERT_FILE="/usr/local/lib/python3.11/dist-packages/certifi/cacert.pem"
ENV HF_HOME="/models"
ENV VLLM_CACHE_ROOT="/cache/vllm"
ENV TRITON_CACHE_DIR="/cache/triton"
ENV CUDA_CACHE_PATH="/cache/cuda"
ENV CUDA_CACHE_MAXSIZE="4294967296"
ENV FLASHINFER_WORKSPACE_BASE="/cache"
ENV FLASHINFER_NO_DOWNLOAD="1"
ENV MAX_JOBS="4"
LABEL io.spark-images.base="debian"
LABEL io.spark-images.pins="{\"build-tools\":\"4.4.4 cmake==4.4.4 ninja==1.13.2\",\"cuda\":\"13.0 nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-culibos==13.0.85 nvidia-cuda-profiler-api==13.0.85 nvidia-cublas==13.0.2.14\",\"debian\":\"bookworm 2026-11-21T00:00:00Z\",\"vllm\":\"0.19.1 sha256:9fb88ce6b50991eba41d183584f65f51d7f6015d86a42cdabf79c1c8bd5d66fa\",\"vllm-build\":\"80.10.2 setuptools==80.10.2 setuptools-scm==10.3.4 vcs-versioning==2.6.0 wheel==0.48.0\",\"vllm-gb10-debian\":\"vllm==0.19.1 flashinfer-python==0.6.6 nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 2026-11-20T00:00:00Z\"}"
LABEL io.spark-images.target="gb10"
LABEL org.opencontainers.image.description="vLLM: an OpenAI-compatible server for large language models, with FlashInfer"
LABEL org.opencontainers.image.licenses="Apache-2.0 AND BSD-3-Clause AND LicenseRef-NVIDIA-CUDA-Toolkit"
LABEL org.opencontainers.image.source="https://github.com/vllm-project/vllm"
LABEL org.opencontainers.image.title="vllm"
LABEL org.opencontainers.image.version="0.19.1"
EXPOSE 8000/tcp
STOPSIGNAL SIGTERM
USER 10001:10001
CMD ["vllm", "serve"]
