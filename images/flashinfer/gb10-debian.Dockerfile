# flashinfer for gb10 on debian: FlashInfer with its kernels compiled ahead of time: files for Python, a component of other images
# Generated from templates/flashinfer.Dockerfile.j2 by `nox -s render`; edit the template, pins.yaml or image.yaml instead.
# `build-root`, `runtime-root` and `inputs` are named build contexts: pinned content that `nox -s fetch` has verified.
# The build command carries `--network none`, the memory cap and the secrets `limits` and `profile`; `nox -s build-flashinfer` does it all.

FROM build-root AS compile
ARG SOURCE_DATE_EPOCH=1776536893
RUN --mount=type=bind,source=.,target=/spark/scripts \
    --mount=type=bind,from=inputs,source=.,target=/spark/inputs \
    --mount=type=cache,id=spark-images-ccache,target=/spark/cache \
    --mount=type=secret,id=limits --mount=type=secret,id=profile \
    /spark/scripts/step compile env FLASHINFER_CUDA_ARCH_LIST=12.1a /spark/scripts/compile_flashinfer arm64 --leave 'single_prefill_*' 'single_decode_*' 'batch_prefill_*' 'batch_decode_*' 'batch_attention_*' 'batch_mla_*' 'xqa_*' 'selective_state_update_*' --keep '*_with_kv_cache_dtype_q_bf16_dtype_kv_bf16_dtype_o_bf16_*head_dim_qk_128_head_dim_vo_128_posenc_0_use_swa_False_use_logits_cap_False*' '*_with_kv_cache_dtype_q_bf16_dtype_kv_e4m3_dtype_o_bf16_*head_dim_qk_128_head_dim_vo_128_posenc_0_use_swa_False_use_logits_cap_False*' selective_state_update_s_bf16_i_bf16_w_bf16_a_f32_si_i64_d_64_ds_128_nt_1_cs_i32_na_i32

FROM runtime-root
COPY --from=compile /out/flashinfer/ /
LABEL io.spark-images.base="debian"
LABEL io.spark-images.pins="{\"build-tools\":\"4.4.4 cmake==4.4.4 ninja==1.13.2\",\"cuda\":\"13.0 nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-culibos==13.0.85 nvidia-cuda-profiler-api==13.0.85 nvidia-cublas==13.0.2.14\",\"debian\":\"bookworm 2026-11-21T00:00:00Z\",\"flashinfer\":\"0.6.8.post1 sha256:b18e4121baf9b93fa9a9f368ba9b981a0342895f50ab9dddc224aeb964ed346f\",\"vllm-build\":\"80.10.2 setuptools==80.10.2 setuptools-scm==10.3.4 vcs-versioning==2.6.0 wheel==0.48.0\"}"
LABEL io.spark-images.target="gb10"
LABEL org.opencontainers.image.description="FlashInfer with its kernels compiled ahead of time: files for Python, a component of other images"
LABEL org.opencontainers.image.licenses="Apache-2.0"
LABEL org.opencontainers.image.source="https://github.com/flashinfer-ai/flashinfer"
LABEL org.opencontainers.image.title="flashinfer"
LABEL org.opencontainers.image.version="0.6.8.post1"
STOPSIGNAL SIGTERM
USER 10001:10001
CMD ["ls", "/usr/local/lib/python3.11/dist-packages/flashinfer/data"]
