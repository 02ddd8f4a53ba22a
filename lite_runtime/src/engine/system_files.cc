#include "engine/system_files.h"

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace edge_kit {
namespace {

int64_t parse_number(const std::string& text, int64_t missing) {
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  return end == text.c_str() ? missing : static_cast<int64_t>(value);
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// The lines of a file, none if it cannot be read. Not by a stream: streams would bring all locales into a library
// that holds its standard library.
std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "r"));
  if (file == nullptr) return lines;
  bool inside = false;  // of a line
  for (int c = std::getc(file.get()); c != EOF; c = std::getc(file.get())) {
    if (!inside) lines.emplace_back();
    inside = c != '\n';
    if (inside) lines.back() += static_cast<char>(c);
  }
  return lines;
}

}  // namespace

std::string read_line(const std::string& path) {
  const std::vector<std::string> lines = read_lines(path);
  return lines.empty() ? "" : lines.front();
}

int64_t read_number(const std::string& path, int64_t missing) {
  return parse_number(read_line(path), missing);
}

int64_t read_field(const std::string& path, const std::string& key, int64_t missing) {
  for (const std::string& line : read_lines(path)) {  // "MemTotal:  16384 kB"
    const size_t end = line.find_first_of(" \t");
    if (end != std::string::npos && line.compare(0, end, key) == 0) {
      return parse_number(line.substr(end), missing);
    }
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
  std::string path;
  for (const std::string& line : read_lines("/proc/self/cgroup")) {
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
