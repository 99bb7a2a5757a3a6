"""Tiny images for the engine's tests: one static C program as the whole file system, made without any network."""

from __future__ import annotations

import io
import platform
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from spark_images.engine.base import RootImage
from spark_images.oci import write_root_layout

NATIVE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
FOREIGN = {"amd64": "arm64", "arm64": "amd64"}[NATIVE]

# Each word is a command that may take the next word: `/probe net limit sleep 3`.
PROBE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void show(const char *path, const char *only) {
  char line[4096];
  FILE *file = fopen(path, "r");
  if (!file) return;
  while (fgets(line, sizeof line, file))
    if (!only || strstr(line, only) == line) printf("%s: %s", path, line);
  fclose(file);
}

int main(int count, char **words) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (int i = 1; i < count; i++) {
    const char *next = i + 1 < count ? words[i + 1] : "";
    if (!strcmp(words[i], "net")) {
      show("/proc/net/dev", NULL);
    } else if (!strcmp(words[i], "limit")) {
      show("/sys/fs/cgroup/memory/memory.stat", "hierarchical_mem");
      show("/sys/fs/cgroup/memory.max", NULL);
      show("/sys/fs/cgroup/memory.swap.max", NULL);
    } else if (!strcmp(words[i], "allocate")) {
      size_t bytes = (size_t)atoi(next) << 20;
      char *memory = malloc(bytes);
      memset(memory, 1, bytes);
      printf("allocated %d at %p\n", atoi(next), (void *)memory);
      i++;
    } else if (!strcmp(words[i], "count")) {
      int number = 0;
      FILE *file = fopen(next, "r");
      if (file) { if (fscanf(file, "%d", &number) != 1) return 9; fclose(file); }
      file = fopen(next, "w");
      fprintf(file, "%d", number + 1);
      fclose(file);
      printf("count is %d\n", number + 1);
      i++;
    } else if (!strcmp(words[i], "cat")) {
      show(next, NULL);
      i++;
    } else if (!strcmp(words[i], "write")) {
      FILE *file = fopen(next, "w");
      fprintf(file, "made in a step\n");
      fclose(file);
      i++;
    } else if (!strcmp(words[i], "lines")) {
      for (int n = atoi(next); n > 0; n--) printf("line %d of a long log %064d\n", n, 0);
      i++;
    } else if (!strcmp(words[i], "say")) {
      printf("%s\n", next);
      i++;
    } else if (!strcmp(words[i], "env")) {
      printf("%s=%s\n", next, getenv(next));
      i++;
    } else if (!strcmp(words[i], "sleep")) {
      sleep(atoi(next));
      i++;
    } else if (!strcmp(words[i], "fail")) {
      return atoi(next);
    } else {
      return 8;
    }
  }
  return 0;
}
"""


def compile_probe(folder: Path) -> bytes:
    """The static program for this machine."""
    source, program = folder / "probe.c", folder / "probe"
    source.write_text(PROBE)
    subprocess.run(["cc", "-static", "-Os", "-o", str(program), str(source)], check=True)
    return program.read_bytes()


def write_root(folder: Path, name: str, files: Mapping[str, bytes], architecture: str = NATIVE) -> RootImage:
    """A root image of these executable files."""
    tar = folder / f"{name}.tar"
    with tarfile.open(tar, "w") as archive:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), 0o755
            archive.addfile(info, io.BytesIO(data))
    layout = write_root_layout(tar, architecture=architecture, env=[("PATH", "/")], epoch=0, output=folder / name)
    return RootImage(name=name, layout=layout.path, digest=layout.manifest_digest)
