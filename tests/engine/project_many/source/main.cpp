#include <cstdio>
#include <string>

int number_1(const std::string &);
int number_2(const std::string &);
int number_3(const std::string &);
int number_4(const std::string &);
int number_5(const std::string &);
int number_6(const std::string &);
int number_7(const std::string &);
int number_8(const std::string &);
int number_9(const std::string &);
int number_10(const std::string &);
int number_11(const std::string &);
int number_12(const std::string &);

int main() {
  int sum = 0;
  for (auto *number : {number_1, number_2, number_3, number_4, number_5, number_6, number_7, number_8, number_9, number_10, number_11, number_12}) sum += number("one two");
  std::printf("%d\n", sum);
}
