/* A libcuda.so.1 and libnvidia-ml.so.1 for tests: one GPU, as the environment describes it; it cannot run anything. */
#include <stdlib.h>
#include <string.h>

static int number(const char *name, int otherwise) { return getenv(name) ? atoi(getenv(name)) : otherwise; }
static const char *text(const char *name, const char *otherwise) { return getenv(name) ? getenv(name) : otherwise; }

int cuInit(unsigned flags) { (void)flags; return number("STUB_INIT", 0); }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int at) { *device = at; return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
  (void)device;
  strncpy(name, text("STUB_NAME", "NVIDIA GB10"), size);
  return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = 128ULL << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == 75 ? number("STUB_MAJOR", 12) : attribute == 76 ? number("STUB_MINOR", 1)
         : attribute == 18 ? number("STUB_UNIFIED", 0) : 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = malloc(1); return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
int cuCtxSetCurrent(void *context) { free(context); return 0; }
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  *free_bytes = (size_t)number("STUB_FREE_GIB", 100) << 30;
  *total = 128ULL << 30;
  return 0;
}
int cuGetErrorName(int status, const char **name) { (void)status; *name = "CUDA_ERROR_NO_DEVICE"; return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) {
  strncpy(version, text("STUB_DRIVER", "580.95.05"), size);
  return 0;
}
