# llamacpp for gb10 on ngc: llama.cpp: llama-server, llama-cli, llama-bench and llama-quantize with the CUDA backend
# Generated from templates/llamacpp.Dockerfile.j2 by `nox -s render`; edit the template, pins.yaml or image.yaml instead.
# `build-root`, `runtime-root` and `inputs` are named build contexts: pinned content that `nox -s fetch` has verified.
# The build command carries `--network none`, the memory cap and the secrets `limits` and `profile`; `nox -s build-llamacpp` does it all.

FROM build-root AS compile
ARG SOURCE_DATE_EPOCH=1790820708
RUN --mount=type=bind,source=.,target=/spark/scripts \
    --mount=type=bind,from=inputs,source=.,target=/spark/inputs \
    --mount=type=cache,id=spark-images-ccache,target=/spark/cache \
    --mount=type=secret,id=limits --mount=type=secret,id=profile \
    /spark/scripts/step compile /spark/scripts/compile_llamacpp arm64 121a-real armv9-a+i8mm+bf16 11312 0c1e57098

FROM runtime-root
COPY --from=compile /out/llamacpp/ /
ENV HOME="/tmp"
ENV LLAMA_ARG_HOST="0.0.0.0"
LABEL io.spark-images.base="ngc"
LABEL io.spark-images.pins="{\"build-tools\":\"4.4.4 cmake==4.4.4 ninja==1.13.2\",\"llama-cpp\":\"b11312 0c1e57098bba43ac29e6e3b677cdceebdd22334f\",\"ngc-pytorch\":\"nvcr.io/nvidia/pytorch:26.01-py3@sha256:38ed2ecb2c16d10677006d73fb0a150855d6ec81db8fc66e800b5ae92741007e\"}"
LABEL io.spark-images.target="gb10"
LABEL org.opencontainers.image.description="llama.cpp: llama-server, llama-cli, llama-bench and llama-quantize with the CUDA backend"
LABEL org.opencontainers.image.licenses="MIT AND LicenseRef-NVIDIA-CUDA-Toolkit"
LABEL org.opencontainers.image.revision="0c1e57098bba43ac29e6e3b677cdceebdd22334f"
LABEL org.opencontainers.image.source="https://github.com/ggml-org/llama.cpp"
LABEL org.opencontainers.image.title="llamacpp"
LABEL org.opencontainers.image.version="b11312"
EXPOSE 8080/tcp
STOPSIGNAL SIGTERM
USER 10001:10001
CMD ["/opt/llama.cpp/bin/llama-server"]
