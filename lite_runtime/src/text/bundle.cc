#include "text/bundle.h"

#include <algorithm>
#include <array>

#include "io/little_endian.h"
#include "io/status.h"

namespace edge_kit {
namespace {

// Records of the zip format (APPNOTE.TXT): what they begin with, and their bytes without the variable part.
constexpr uint32_t kEndMark = 0x06054B50, kEnd64Mark = 0x06064B50, kLocatorMark = 0x07064B50;
constexpr uint32_t kEntryMark = 0x02014B50, kFileMark = 0x04034B50;
constexpr uint64_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kEntryBytes = 46, kFileBytes = 30;
constexpr uint64_t kMaxCommentBytes = 0xFFFF;
constexpr uint16_t kZip64Field = 1;
constexpr uint32_t kIn64 = 0xFFFFFFFF;  // the number stands in the zip64 field
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 28;  // no tokenizer comes near

std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320u : 0);
    table[byte] = value;
  }
  return table;
}

uint32_t crc32(const uint8_t* data, uint64_t size) {
  static const std::array<uint32_t, 256> table = make_crc_table();
  uint32_t crc = 0xFFFFFFFF;
  for (uint64_t i = 0; i < size; ++i) crc = crc >> 8 ^ table[(crc ^ data[i]) & 0xFF];
  return ~crc;
}

}  // namespace

Bundle::Bundle(const uint8_t* data, uint64_t size, const std::string& label)
    : data_(data), size_(size), label_(label) {
  uint64_t end;
  if (find_end(&end)) read_directory(end);
}

void Bundle::fail(const std::string& problem) const {
  throw Error(EK_ERR_FORMAT, label_ + ": the archive behind the tensors is damaged: " + problem +
                                 ". Copy or download the file again.");
}

const uint8_t* Bundle::at(uint64_t position, uint64_t size, const char* what) const {
  if (position > size_ || size > size_ - position) {
    fail(std::string(what) + " needs " + std::to_string(size) + " bytes from byte " +
         std::to_string(position) + " on, the file ends at " + std::to_string(size_));
  }
  return data_ + position;
}

// The archive's last record stands at the end of the file, before a comment of a length that it names.
bool Bundle::find_end(uint64_t* position) const {
  for (uint64_t comment = 0; comment <= kMaxCommentBytes && comment + kEndBytes <= size_; ++comment) {
    *position = size_ - kEndBytes - comment;
    const uint8_t* record = data_ + *position;
    if (load<uint32_t>(record) == kEndMark && load<uint16_t>(record + 20) == comment) return true;
  }
  return false;
}

void Bundle::read_directory(uint64_t end) {
  const uint8_t* record = at(end, kEndBytes, "its end record");
  uint64_t bytes = load<uint32_t>(record + 12), offset = load<uint32_t>(record + 16);
  if (end >= kLocatorBytes + kEnd64Bytes && load<uint32_t>(record - kLocatorBytes) == kLocatorMark &&
      load<uint32_t>(record - kLocatorBytes - kEnd64Bytes) == kEnd64Mark) {
    end -= kLocatorBytes + kEnd64Bytes;
    bytes = load<uint64_t>(data_ + end + 40);
    offset = load<uint64_t>(data_ + end + 48);
  }
  if (bytes > end || offset > end - bytes) {
    fail("a directory of " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
         " does not fit before its end record at byte " + std::to_string(end));
  }
  const uint64_t shift = end - bytes - offset;
  for (uint64_t position = end - bytes; position < end;) position = read_entry(position, end, shift);
}

// Gives where the next one starts.
uint64_t Bundle::read_entry(uint64_t position, uint64_t end, uint64_t shift) {
  const auto require = [&](uint64_t needed) {
    if (needed > end - position) fail("an entry of its directory at byte " + std::to_string(position) +
                                      " runs over the end");
  };
  require(kEntryBytes);
  const uint8_t* record = data_ + position;
  if (load<uint32_t>(record) != kEntryMark) fail("no directory entry at byte " + std::to_string(position));
  const uint64_t name_bytes = load<uint16_t>(record + 28), extra_bytes = load<uint16_t>(record + 30);
  const uint64_t total = kEntryBytes + name_bytes + extra_bytes + load<uint16_t>(record + 32);
  require(total);
  Entry entry;
  entry.flags = load<uint16_t>(record + 8);
  entry.method = load<uint16_t>(record + 10);
  entry.crc = load<uint32_t>(record + 16);
  entry.stored_bytes = load<uint32_t>(record + 20);
  entry.bytes = load<uint32_t>(record + 24);
  entry.header = load<uint32_t>(record + 42);

  const uint8_t* extra = record + kEntryBytes + name_bytes;
  for (uint64_t at = 0; at + 4 <= extra_bytes;) {
    const uint16_t id = load<uint16_t>(extra + at);
    uint64_t left = std::min<uint64_t>(load<uint16_t>(extra + at + 2), extra_bytes - at - 4);
    const uint8_t* field = extra + at + 4;
    at += 4 + left;
    if (id != kZip64Field) continue;
    for (uint64_t* number : {&entry.bytes, &entry.stored_bytes, &entry.header}) {
      if (*number != kIn64) continue;
      if (left < 8) fail("a zip64 field is too short");
      *number = load<uint64_t>(field);
      field += 8;
      left -= 8;
    }
  }
  if (entry.header > UINT64_MAX - shift) fail("an offset of " + std::to_string(entry.header));
  entry.header += shift;
  entries_[std::string(reinterpret_cast<const char*>(record + kEntryBytes), name_bytes)] = entry;
  return position + total;
}

std::string_view Bundle::read(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail("it has no " + name);
  const Entry& entry = found->second;
  if ((entry.flags & 1) != 0 || entry.method != 0 || entry.bytes != entry.stored_bytes) {
    throw Error(EK_ERR_NOT_SUPPORTED, label_ + ": " + name +
                                        " in the archive behind the tensors is compressed or encrypted; "
                                        "expected a stored file, as edge-kit export writes it");
  }
  if (entry.bytes > kMaxFileBytes) {
    fail(name + " claims " + std::to_string(entry.bytes) + " bytes, expected at most " +
         std::to_string(kMaxFileBytes));
  }
  const uint8_t* header = at(entry.header, kFileBytes, "a file's header");
  const uint64_t name_bytes = load<uint16_t>(header + 26), extra_bytes = load<uint16_t>(header + 28);
  const uint64_t begin = entry.header + kFileBytes + name_bytes;
  const uint8_t* header_name = at(entry.header + kFileBytes, name_bytes, "a file's name");
  if (load<uint32_t>(header) != kFileMark ||
      name != std::string_view(reinterpret_cast<const char*>(header_name), name_bytes)) {
    fail("no header of " + name + " at byte " + std::to_string(entry.header));
  }
  const uint8_t* content = at(begin, extra_bytes + entry.bytes, "a file") + extra_bytes;
  if (crc32(content, entry.bytes) != entry.crc) fail("the CRC-32 of " + name + " differs");
  return {reinterpret_cast<const char*>(content), static_cast<size_t>(entry.bytes)};
}

Bundle bundle_of(const NbFile* file) {
  return file != nullptr ? Bundle(file->data(), file->size(), file->path())
                         : Bundle(nullptr, 0, "a model without a file");
}

}  // namespace edge_kit
