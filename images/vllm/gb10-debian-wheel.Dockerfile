# vllm for gb10 on debian-wheel: vLLM: an OpenAI-compatible server for large language models, with FlashInfer
# Generated from templates/wheels.Dockerfile.j2 by `nox -s render`; edit the template, pins.yaml or image.yaml instead.
# `build-root`, `runtime-root` and `inputs` are named build contexts: pinned content that `nox -s fetch` has verified.
# The build command carries `--network none`, the memory cap and the secrets `limits` and `profile`; `nox -s build-vllm` does it all.

FROM build-root AS compile
ARG SOURCE_DATE_EPOCH=1795132800
RUN --mount=type=bind,source=.,target=/spark/scripts \
    --mount=type=bind,from=inputs,source=.,target=/spark/inputs \
    --mount=type=cache,id=spark-images-ccache,target=/spark/cache \
    --mount=type=secret,id=limits --mount=type=secret,id=profile \
    /spark/scripts/step install /spark/scripts/install_layers 3.11 /spark/inputs/layers build_backend.py triton/backends/nvidia/lib/cupti/libcupti_static.a xgrammar/lib/libxgrammar.a

FROM runtime-root
COPY --from=compile /out/cuda/ /
COPY --from=compile /out/torch/ /
COPY --from=compile /out/python/ /
COPY --from=compile /out/flashinfer/ /
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
LABEL io.spark-images.base="debian-wheel"
LABEL io.spark-images.pins="{\"debian\":\"bookworm 2026-11-21T00:00:00Z\",\"vllm-gb10-debian\":\"vllm==0.20.2 flashinfer-python==0.6.8.post1 nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 2026-11-20T00:00:00Z\"}"
LABEL io.spark-images.target="gb10"
LABEL org.opencontainers.image.description="vLLM: an OpenAI-compatible server for large language models, with FlashInfer"
LABEL org.opencontainers.image.licenses="Apache-2.0 AND BSD-3-Clause AND LicenseRef-NVIDIA-CUDA-Toolkit"
LABEL org.opencontainers.image.source="https://github.com/vllm-project/vllm"
LABEL org.opencontainers.image.title="vllm"
LABEL org.opencontainers.image.version="0.20.2"
EXPOSE 8000/tcp
STOPSIGNAL SIGTERM
USER 10001:10001
CMD ["vllm", "serve"]
