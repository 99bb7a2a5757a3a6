docker run \
  --detach \
  --restart on-failure \
  --name two-lanes-coder \
  --gpus all \
  --shm-size 2g \
  --publish 127.0.0.1:8000:8000 \
  --volume huggingface:/models \
  --volume two-lanes-coder-cache:/cache \
  --env HF_TOKEN \
  --env HF_HOME=/models \
  --env CUDA_CACHE_PATH=/cache/cuda \
  --env TRITON_CACHE_DIR=/cache/triton \
  --env VLLM_CACHE_ROOT=/cache/vllm \
  registry.example/vllm@sha256:1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f vllm serve cyankiwi/Qwen3-Coder-Next-AWQ-4bit \
  --served-model-name two-lanes-coder two-lanes \
  --host 0.0.0.0 \
  --port 8000 \
  --gpu-memory-utilization 0.45 \
  --max-model-len 131072 \
  --enable-auto-tool-choice \
  --tool-call-parser qwen3_coder \
  --enable-prefix-caching \
  --fail-on-environ-validation

timeout 3600 sh -c 'until docker exec two-lanes-coder python3 -c '"'"'import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=5)'"'"' http://127.0.0.1:8000/health 2>/dev/null; do sleep 5; done' || exit

docker run \
  --detach \
  --restart on-failure \
  --name two-lanes-quick \
  --gpus all \
  --shm-size 2g \
  --publish 127.0.0.1:8001:8000 \
  --volume huggingface:/models \
  --volume two-lanes-quick-cache:/cache \
  --env HF_TOKEN \
  --env HF_HOME=/models \
  --env CUDA_CACHE_PATH=/cache/cuda \
  --env TRITON_CACHE_DIR=/cache/triton \
  --env VLLM_CACHE_ROOT=/cache/vllm \
  registry.example/vllm@sha256:1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f vllm serve Qwen/Qwen3.6-35B-A3B-FP8 \
  --served-model-name two-lanes-quick two-lanes \
  --host 0.0.0.0 \
  --port 8000 \
  --gpu-memory-utilization 0.36 \
  --max-model-len 32768 \
  --reasoning-parser qwen3 \
  --enable-auto-tool-choice \
  --tool-call-parser qwen3_xml \
  --kv-cache-dtype fp8 \
  --attention-backend flashinfer \
  --max-num-batched-tokens 16384 \
  --enable-prefix-caching \
  --fail-on-environ-validation
