# llamacpp for hopper on debian: llama.cpp: llama-server, llama-cli, llama-bench and llama-quantize with the CUDA backend
# Generated from templates/llamacpp.Dockerfile.j2 by `nox -s render`; edit the template, pins.yaml or image.yaml instead.
# `build-root`, `runtime-root` and `inputs` are named build contexts: pinned content that `nox -s fetch` has verified.
# The build command carries `--network none`, the memory cap and the secrets `limits` and `profile`; `nox -s build-llamacpp` does it all.

FROM build-root AS compile
ARG SOURCE_DATE_EPOCH=1790820708
RUN --mount=type=bind,source=.,target=/spark/scripts \
    --mount=type=bind,from=inputs,source=.,target=/spark/inputs \
    --mount=type=cache,id=spark-images-ccache,target=/spark/cache \
    --mount=type=secret,id=limits --mount=type=secret,id=profile \
    /spark/scripts/step compile /spark/scripts/compile_llamacpp amd64 90a-real x86-64-v3 11312 0c1e57098

FROM runtime-root
COPY --from=compile /out/cuda/ /
COPY --from=compile /out/llamacpp/ /
ENV NVIDIA_VISIBLE_DEVICES="all"
ENV NVIDIA_DRIVER_CAPABILITIES="compute,utility"
ENV PATH="/opt/llama.cpp/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV LLAMA_ARG_HOST="0.0.0.0"
LABEL io.spark-images.base="debian"
LABEL io.spark-images.pins="{\"build-tools\":\"4.4.4 cmake==4.4.4 ninja==1.13.2\",\"cuda\":\"13.0 nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-culibos==13.0.85 nvidia-cuda-profiler-api==13.0.85 nvidia-cublas==13.0.2.14\",\"debian\":\"bookworm 2026-11-21T00:00:00Z\",\"llama-cpp\":\"b11312 0c1e57098bba43ac29e6e3b677cdceebdd22334f\"}"
LABEL io.spark-images.target="hopper"
LABEL org.opencontainers.image.description="llama.cpp: llama-server, llama-cli, llama-bench and llama-quantize with the CUDA backend"
LABEL org.opencontainers.image.licenses="MIT AND LicenseRef-NVIDIA-CUDA-Toolkit"
LABEL org.opencontainers.image.revision="0c1e57098bba43ac29e6e3b677cdceebdd22334f"
LABEL org.opencontainers.image.source="https://github.com/ggml-org/llama.cpp"
LABEL org.opencontainers.image.title="llamacpp"
LABEL org.opencontainers.image.version="b11312"
EXPOSE 8080/tcp
STOPSIGNAL SIGTERM
USER 10001:10001
ENTRYPOINT ["/opt/llama.cpp/bin/llama-server"]
