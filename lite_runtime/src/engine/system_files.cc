#include "engine/system_files.h"

#include <cstdlib>
#include <fstream>

namespace edge_kit {
namespace {

int64_t parse_number(const std::string& text, int64_t missing) {
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  return end == text.c_str() ? missing : static_cast<int64_t>(value);
}

}  // namespace

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int64_t read_number(const std::string& path, int64_t missing) {
  return parse_number(read_line(path), missing);
}

int64_t read_field(const std::string& path, const std::string& key, int64_t missing) {
  std::ifstream file(path);
  std::string word, rest;
  while (file >> word && std::getline(file, rest)) {
    if (word == key) return parse_number(rest, missing);
  }
  return missing;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  const char* at = text.c_str();
  while (*at != '\0') {
    char* end = nullptr;
    const long first = std::strtol(at, &end, 10);
    if (end == at) break;
    long last = first;
    if (*end == '-') last = std::strtol(end + 1, &end, 10);
    for (long cpu = first; cpu <= last && cpu < 65536; ++cpu) cpus.push_back(static_cast<int>(cpu));
    at = *end == ',' ? end + 1 : end;
    if (at == end) break;
  }
  return cpus;
}

std::vector<std::string> cgroup_folders() {
  std::vector<std::string> folders;
  std::ifstream file("/proc/self/cgroup");
  std::string line, path;
  while (std::getline(file, line)) {
    if (line.compare(0, 3, "0::") == 0) path = line.substr(3);
  }
  while (path.size() > 1) {
    folders.push_back("/sys/fs/cgroup" + path);
    path.resize(path.rfind('/'));
  }
  folders.push_back("/sys/fs/cgroup");
  return folders;
}

}  // namespace edge_kit
