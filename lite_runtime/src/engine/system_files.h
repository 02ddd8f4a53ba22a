// Numbers out of the small text files in which Linux describes itself (/proc, /sys).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace edge_kit {

std::string read_line(const std::string& path);  // first line; empty if there is no such file

// The number that the file starts with, or `missing`: for no file, or a word such as "max".
int64_t read_number(const std::string& path, int64_t missing);

// The number after the word `key` at the start of a line, or `missing`.
int64_t read_field(const std::string& path, const std::string& key, int64_t missing);

// "0-3,8" -> 0 1 2 3 8.
std::vector<int> parse_cpu_list(const std::string& text);

// Folders of the process's cgroup (v2) and of those that contain it, innermost first.
std::vector<std::string> cgroup_folders();

}  // namespace edge_kit
