// A small tokenizer.json and the archive that carries it, made in memory, to read and to spoil.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "io/nb_file.h"
#include "io/utf8.h"

namespace edge_kit_test {

using namespace edge_kit;

using Files = std::vector<std::pair<std::string, std::string>>;

inline void put(std::string* out, uint64_t value, int bytes) {  // little-endian
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> 8 * i & 0xFF));
}

inline uint32_t slow_crc32(const std::string& data) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : data) {
    crc ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
  }
  return ~crc;
}

// The archive's form: what an export writes, or one that must be read or refused as well.
struct ZipForm {
  std::string before;        // the tensors
  bool from_archive = false; // offsets count from the archive, not from the file
  bool zip64 = false;
  std::string comment;
  int method = 0, flags = 0;
};

inline std::string zip(const Files& files, const ZipForm& form = {}) {
  std::string out = form.before, directory;
  const uint64_t base = form.from_archive ? form.before.size() : 0;
  for (const auto& [name, content] : files) {
    const uint64_t header = out.size() - base, crc = slow_crc32(content), size = content.size();
    put(&out, 0x04034B50, 4);
    for (const int value : {20, form.flags, form.method, 0, 0}) put(&out, static_cast<uint64_t>(value), 2);
    for (const uint64_t value : {crc, size, size}) put(&out, value, 4);
    put(&out, name.size(), 2);
    put(&out, 0, 2);
    out += name + content;

    std::string extra;
    if (form.zip64) {
      put(&extra, 0x7075, 2);  // a field of another kind, to be passed over
      put(&extra, 1, 2);
      put(&extra, 9, 1);
      put(&extra, 1, 2);
      put(&extra, 8, 2);
      put(&extra, header, 8);
    }
    put(&directory, 0x02014B50, 4);
    for (const int value : {20, 20, form.flags, form.method, 0, 0}) {
      put(&directory, static_cast<uint64_t>(value), 2);
    }
    for (const uint64_t value : {crc, size, size}) put(&directory, value, 4);
    put(&directory, name.size(), 2);
    put(&directory, extra.size(), 2);
    put(&directory, 0, 2);  // no comment; then disk and attributes
    put(&directory, 0, 8);
    put(&directory, form.zip64 ? 0xFFFFFFFF : header, 4);
    directory += name + extra;
  }
  const uint64_t begin = out.size() - base, count = files.size();
  out += directory;
  if (form.zip64) {
    const uint64_t record = out.size() - base;
    put(&out, 0x06064B50, 4);
    put(&out, 44, 8);
    put(&out, 45 | 45 << 16, 4);
    put(&out, 0, 8);
    for (const uint64_t value : {count, count, static_cast<uint64_t>(directory.size()), begin}) {
      put(&out, value, 8);
    }
    put(&out, 0x07064B50, 4);
    put(&out, 0, 4);
    put(&out, record, 8);
    put(&out, 1, 4);
  }
  put(&out, 0x06054B50, 4);
  put(&out, 0, 4);
  put(&out, count | count << 16, 4);
  put(&out, directory.size(), 4);
  put(&out, form.zip64 ? 0xFFFFFFFF : begin, 4);
  put(&out, form.comment.size(), 2);
  return out + form.comment;
}

// The printable character that byte-level BPE writes for a byte.
inline std::string byte_letter(int wanted) {
  uint32_t next = 0x100;
  for (int byte = 0;; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    const uint32_t letter = printable ? static_cast<uint32_t>(byte) : next++;
    if (byte < wanted) continue;
    std::string text;
    append_utf8(letter, &text);
    return text;
  }
}

inline std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

inline std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ",") + part;
  return out;
}

// The 256 bytes are tokens 0 to 255, each merge adds the next id, then come the added tokens. The parts are
// JSON, and can be replaced.
struct ToyTokenizer {
  std::vector<std::pair<std::string, std::string>> merges = {
      {"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}};
  std::vector<std::string> added = {
      R"("content":"<s>","special":true,"normalized":false)",
      R"("content":"</s>","special":true,"normalized":false)",
      R"("content":"<think>","special":false,"normalized":false)"};
  std::string normalizer = "null";
  std::string pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})";
  std::string decoder = R"({"type":"ByteLevel"})";
  std::string post_processor = "null";
  std::string model_options = R"("ignore_merges":false)";
  std::string root_options = R"("truncation":null)";
  bool merge_pairs = false;  // as lists of two, not as texts

  int32_t first_added() const { return 256 + static_cast<int32_t>(merges.size()); }

  std::string json() const {
    std::vector<std::string> vocab, merge_list, added_list;
    int id = 0;
    for (int byte = 0; byte < 256; ++byte) {
      vocab.push_back(quoted(byte_letter(byte)) + ":" + std::to_string(id++));
    }
    for (const auto& [left, right] : merges) {
      vocab.push_back(quoted(left + right) + ":" + std::to_string(id++));
      merge_list.push_back(merge_pairs ? "[" + quoted(left) + "," + quoted(right) + "]"
                                       : quoted(left + " " + right));
    }
    for (const std::string& token : added) {
      added_list.push_back("{\"id\":" + std::to_string(id++) + "," + token + "}");
    }
    return "{" + root_options + ",\n \"added_tokens\": [" + joined(added_list) + "],\n \"normalizer\": " +
           normalizer + ", \"pre_tokenizer\": " + pre_tokenizer + ", \"post_processor\": " + post_processor +
           ", \"decoder\": " + decoder + ",\n \"model\": {\"type\": \"BPE\", " + model_options +
           ", \"vocab\": {" + joined(vocab) + "}, \"merges\": [" + joined(merge_list) + "]}}\n";
  }
};

// Bytes in memory as a model's file: enough for what is read behind its tensors.
class BytesFile : public NbFile {
 public:
  explicit BytesFile(std::string bytes) : bytes_(std::move(bytes)) {}

  const std::string& path() const override { return path_; }
  const std::string& opt_version() const override { return path_; }
  const std::vector<Op>& ops() const override { return ops_; }
  const std::vector<Tensor>& tensors() const override { return tensors_; }
  const Tensor* find(const std::string&) const override { return nullptr; }
  bool variable(const std::string&, DataType*, std::vector<int64_t>*) const override { return false; }
  const uint8_t* data() const override { return reinterpret_cast<const uint8_t*>(bytes_.data()); }
  size_t size() const override { return bytes_.size(); }

 private:
  const std::string bytes_, path_ = "toy.nb";
  const std::vector<Op> ops_;
  const std::vector<Tensor> tensors_;
};

}  // namespace edge_kit_test
