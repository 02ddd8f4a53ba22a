#include "io/flat_reader.h"

#include <cstring>

#include "io/little_endian.h"
#include "io/status.h"
#include "io/utf8.h"

namespace edge_kit {
namespace {

constexpr uint64_t kBudget = 8;  // sound buffers need 1; some writers share equal strings

}  // namespace

FlatBuffer::FlatBuffer(const uint8_t* data, uint64_t size, uint64_t file_offset,
                       const std::string& label)
    : data_(data),
      size_(size),
      file_offset_(file_offset),
      label_(label),
      budget_(kBudget * size + 64) {}

void FlatBuffer::fail(uint64_t position, const std::string& what, const std::string& problem) const {
  throw Error(EK_ERR_FORMAT, label_ + ": damaged at byte " + std::to_string(file_offset_ + position) +
                                 " while reading " + what + ": " + problem +
                                 ". Copy or export the file again.");
}

void FlatBuffer::check(uint64_t position, uint64_t size, const std::string& what) const {
  if (position <= size_ && size <= size_ - position) return;
  fail(position, what, std::to_string(size) + " bytes there are outside the table's bytes " +
                           std::to_string(file_offset_) + " to " + std::to_string(file_offset_ + size_));
}

void FlatBuffer::charge(uint64_t size, uint64_t position, const std::string& what) {
  if (size > budget_) fail(position, what, "its parts overlap so often that it cannot be sound");
  budget_ -= size;
}

uint64_t FlatBuffer::target(uint64_t position, const std::string& what) const {
  check(position, 4, what);
  return position + load<uint32_t>(data_ + position);
}

uint64_t FlatBuffer::vector(uint64_t position, uint64_t element_bytes, const std::string& what,
                            uint64_t* count) {
  check(position, 4, what);
  *count = load<uint32_t>(data_ + position);
  const uint64_t bytes = *count * element_bytes;  // < 2^35
  check(position + 4, bytes, what);
  charge(4 + bytes, position, what);
  return position + 4;
}

std::string FlatBuffer::text(uint64_t position, const std::string& what) {
  uint64_t count;
  const uint64_t first = vector(position, 1, what, &count);
  std::string text(reinterpret_cast<const char*>(data_ + first), count);
  if (!is_utf8(text)) fail(first, what, "its text is not UTF-8");
  return text;
}

FlatTable::FlatTable(FlatBuffer& buffer, uint64_t position, const std::string& what)
    : buffer_(&buffer), position_(position), what_(what) {
  buffer.check(position, 4, what);
  const int64_t distance = load<int32_t>(buffer.data() + position);
  const int64_t vtable = static_cast<int64_t>(position) - distance;
  if (vtable < 0) {
    buffer.fail(position, what, "its vtable lies " + std::to_string(distance) + " bytes before it");
  }
  vtable_ = static_cast<uint64_t>(vtable);
  buffer.check(vtable_, 4, what);
  const uint32_t vtable_bytes = load<uint16_t>(buffer.data() + vtable_);
  size_ = load<uint16_t>(buffer.data() + vtable_ + 2);
  if (vtable_bytes < 4 || vtable_bytes % 2 != 0 || size_ < 4) {
    buffer.fail(vtable_, what, "a vtable of " + std::to_string(vtable_bytes) + " bytes for a table of " +
                                   std::to_string(size_));
  }
  buffer.check(vtable_, vtable_bytes, what);
  buffer.check(position, size_, what);
  buffer.charge(size_, position, what);
  slots_ = (vtable_bytes - 4) / 2;
}

FlatTable FlatTable::root(FlatBuffer& buffer, const std::string& what) {
  return FlatTable(buffer, buffer.target(0, what), what);
}

uint64_t FlatTable::field(int slot, uint64_t size) const {
  if (static_cast<uint32_t>(slot) >= slots_) return 0;
  const uint32_t offset = load<uint16_t>(buffer_->data() + vtable_ + 4 + 2 * static_cast<uint64_t>(slot));
  if (offset == 0) return 0;
  if (offset < 4 || offset + size > size_) {
    fail("field " + std::to_string(slot) + " lies at " + std::to_string(offset) + " in a table of " +
         std::to_string(size_) + " bytes");
  }
  return position_ + offset;
}

uint64_t FlatTable::target(int slot) const {
  const uint64_t position = field(slot, 4);
  return position != 0 ? buffer_->target(position, what_) : 0;
}

template <typename T>
T FlatTable::scalar(int slot, T fallback) const {
  const uint64_t position = field(slot, sizeof(T));
  return position != 0 ? load<T>(buffer_->data() + position) : fallback;
}

bool FlatTable::span(int slot, uint64_t element_bytes, uint64_t* first, uint64_t* count) const {
  *first = 0;
  *count = 0;
  const uint64_t position = target(slot);
  if (position == 0) return false;
  *first = buffer_->vector(position, element_bytes, what_, count);
  return true;
}

template <typename T>
std::vector<T> FlatTable::scalars(int slot) const {
  uint64_t first, count;
  if (!span(slot, sizeof(T), &first, &count) || count == 0) return {};
  std::vector<T> values(count);
  std::memcpy(values.data(), buffer_->data() + first, count * sizeof(T));
  return values;
}

std::string FlatTable::text(int slot) const {
  const uint64_t position = target(slot);
  return position != 0 ? buffer_->text(position, what_) : std::string();
}

std::string FlatTable::required_text(int slot) const {
  const uint64_t position = target(slot);
  if (position == 0) fail("required field " + std::to_string(slot) + " is absent");
  return buffer_->text(position, what_);
}

std::vector<std::string> FlatTable::texts(int slot) const {
  uint64_t first, count;
  span(slot, 4, &first, &count);
  std::vector<std::string> values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    values.push_back(buffer_->text(buffer_->target(first + 4 * i, what_), what_));
  }
  return values;
}

std::vector<FlatTable> FlatTable::tables(int slot, const std::string& what) const {
  uint64_t first, count;
  span(slot, 4, &first, &count);
  std::vector<FlatTable> values;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string name = what + " " + std::to_string(i);
    values.push_back(FlatTable(*buffer_, buffer_->target(first + 4 * i, name), name));
  }
  return values;
}

bool FlatTable::table(int slot, const std::string& what, FlatTable* out) const {
  const uint64_t position = target(slot);
  if (position == 0) return false;
  *out = FlatTable(*buffer_, position, what);
  return true;
}

FlatTable FlatTable::required_table(int slot, const std::string& what) const {
  FlatTable out;
  if (!table(slot, what, &out)) fail("required field " + std::to_string(slot) + " is absent");
  return out;
}

template uint8_t FlatTable::scalar(int, uint8_t) const;
template int32_t FlatTable::scalar(int, int32_t) const;
template int64_t FlatTable::scalar(int, int64_t) const;
template float FlatTable::scalar(int, float) const;
template std::vector<uint8_t> FlatTable::scalars(int) const;
template std::vector<int32_t> FlatTable::scalars(int) const;
template std::vector<int64_t> FlatTable::scalars(int) const;
template std::vector<float> FlatTable::scalars(int) const;

}  // namespace edge_kit
