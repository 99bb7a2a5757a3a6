/* standin SECONDS PEAK_KIB PART:PART… -c SOURCE -o OBJECT
   Takes the time and the memory of a compiler and nothing else. PART:PART: part of the time, part of the peak, in order
   and straight in between. Goes into the cgroup whose file of members MEMBERS names. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec + at.tv_nsec * 1e-9;
}

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static void enter(const char *members) {
  FILE *file = fopen(members, "w");
  if (!file || fprintf(file, "%d\n", getpid()) < 0 || fclose(file)) fail(members);
}

int main(int count, char **arguments) {
  if (count < 5) return 2;
  double began = now(), seconds = atof(arguments[1]), time0 = 0, held0 = 0, time1, held1;
  size_t page = sysconf(_SC_PAGESIZE), peak = strtoull(arguments[2], 0, 10) * 1024 / page * page, held = 0;
  const char *members = getenv("MEMBERS");
  if (members) enter(members);
  char *memory = mmap(0, peak + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  madvise(memory, peak, MADV_NOHUGEPAGE); /* it grows as told, and not by 2 MiB */
  for (int number = 3; number < count && sscanf(arguments[number], "%lf:%lf", &time1, &held1) == 2; number++) {
    for (int last = 0; !last;) {
      double part = (now() - began) / seconds;
      last = part >= time1;
      double along = last || time1 == time0 ? 1 : (part - time0) / (time1 - time0);
      size_t wanted = (size_t)(peak * (held0 + (held1 - held0) * along)) / page * page;
      if (wanted < held) madvise(memory + wanted, held - wanted, MADV_DONTNEED);
      for (; held < wanted; held += page) memory[held] = 1;
      held = wanted;
      double left = (time1 - part) * seconds;
      if (!last) usleep(1e6 * (left < 0.01 ? left : 0.01) + 1);
    }
    time0 = time1;
    held0 = held1;
  }
  FILE *object = fopen(arguments[count - 1], "w");
  if (!object || fclose(object)) fail(arguments[count - 1]);
  return 0;
}
