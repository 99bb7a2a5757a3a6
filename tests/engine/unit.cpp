// Compiled with NUMBER=1, 2 and so on; the headers and templates make the compiler take some memory and a second.
#include <map>
#include <regex>
#include <string>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

int JOIN(number_, NUMBER)(const std::string &text) {
  std::map<std::string, int> found;
  const std::regex word("[a-z]+");
  for (std::sregex_iterator at(text.begin(), text.end(), word), end; at != end; ++at) found[at->str()] += NUMBER;
  int sum = 0;
  for (const auto &[name, count] : found) sum += count;
  return sum;
}
