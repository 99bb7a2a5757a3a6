#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  const char *greeting = getenv("GREETING");
  printf("hello %s, version %s, %s\n", argc > 1 ? argv[1] : "nobody", VERSION, greeting ? greeting : "no greeting");
  return 0;
}
