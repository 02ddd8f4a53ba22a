#include "io/signature.h"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace edge_kit {
namespace {

struct Start {
  const char* bytes;
  size_t length;
  const char* name;
};

const Start kStarts[] = {
    {"version https://git-lfs", 23, "a git-LFS pointer: the content was not fetched (git lfs pull)"},
    {"PK\x03\x04", 4, "a zip archive (a PyTorch checkpoint, a wheel?)"},
    {"PK\x05\x06", 4, "an empty zip archive"},
    {"GGUF", 4, "a GGUF checkpoint: export it with edge-kit export --model FILE"},
    {"\x1f\x8b", 2, "a gzip archive: unpack it first"},
    {"\x7f" "ELF", 4, "a program or shared library (ELF)"},
    {"\x80\x02", 2, "a Python pickle (a .pdparams or .bin checkpoint?)"},
    {"\x80\x04", 2, "a Python pickle (a .pdparams or .bin checkpoint?)"},
    {"\x89PNG", 4, "a PNG picture"},
};

std::string lower_and_trimmed(const std::string& head) {
  size_t first = 0;
  while (first < head.size() && std::isspace(static_cast<unsigned char>(head[first]))) ++first;
  std::string text = head.substr(first);
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool starts_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

bool is_plain_text(char c) { return c == '\t' || c == '\r' || c == '\n' || (c >= 32 && c < 127); }

}  // namespace

std::string name_content(const uint8_t* head, uint64_t size) {
  if (size == 0) return "an empty file: the download or copy did not happen";
  std::string bytes(reinterpret_cast<const char*>(head), static_cast<size_t>(std::min<uint64_t>(size, 64)));
  if (starts_with(bytes, "\xef\xbb\xbf")) bytes.erase(0, 3);
  const std::string text = lower_and_trimmed(bytes);
  for (const char* markup : {"<!doctype", "<html", "<head", "<?xml"}) {
    if (starts_with(text, markup)) {
      return "a web page: the download got an error or a login page instead of the file";
    }
  }
  for (const Start& start : kStarts) {
    if (bytes.compare(0, start.length, start.bytes, start.length) == 0) return start.name;
  }
  if (bytes.size() > 9 && bytes[8] == '{') {
    uint64_t header_bytes;
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    if (header_bytes < size) return "a safetensors checkpoint: export it with edge-kit export --model FOLDER";
  }
  if (starts_with(text, "{") || starts_with(text, "[")) {
    return "a JSON text (a PIR program of Paddle 3, a config?)";
  }
  if (bytes.find_first_not_of('\0') == std::string::npos) return "zeros: an unfinished download or copy";
  if (std::all_of(bytes.begin(), bytes.end(), is_plain_text)) return "a text";
  return "bytes of an unknown kind";
}

}  // namespace edge_kit
