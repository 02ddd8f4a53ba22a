// FlatBuffers tables, read in place with every offset checked.
//
// Positions count from the start of the FlatBuffer; messages give them from the start of the file. The cost
// of a hostile buffer is bounded: each object visited is charged against a budget of 8 times the buffer's
// size, so objects that share bytes again and again end in an error. edge_kit/nb/flat.py is the same in
// Python; a test holds the two against each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace edge_kit {

class FlatBuffer {
 public:
  // `file_offset` is where the buffer starts in the file that `label` names.
  FlatBuffer(const uint8_t* data, uint64_t size, uint64_t file_offset, const std::string& label);

  [[noreturn]] void fail(uint64_t position, const std::string& what, const std::string& problem) const;
  void check(uint64_t position, uint64_t size, const std::string& what) const;
  void charge(uint64_t size, uint64_t position, const std::string& what);
  uint64_t target(uint64_t position, const std::string& what) const;  // where the offset stored there leads
  std::string text(uint64_t position, const std::string& what);

  // Position of the first element of the vector at `position`; *count elements are there.
  uint64_t vector(uint64_t position, uint64_t element_bytes, const std::string& what, uint64_t* count);

  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  const uint8_t* data_;
  uint64_t size_;
  uint64_t file_offset_;
  const std::string& label_;
  uint64_t budget_;
};

// One table. Fields are named by slot: their place in the schema, from 0. `what` names the table in messages.
class FlatTable {
 public:
  static FlatTable root(FlatBuffer& buffer, const std::string& what);

  // The value, or `fallback` if the field is absent.
  template <typename T>
  T scalar(int slot, T fallback) const;
  // Empty if absent.
  template <typename T>
  std::vector<T> scalars(int slot) const;
  std::string text(int slot) const;
  std::string required_text(int slot) const;
  std::vector<std::string> texts(int slot) const;
  std::vector<FlatTable> tables(int slot, const std::string& what) const;  // named "<what> <index>"
  // False if absent.
  bool table(int slot, const std::string& what, FlatTable* out) const;
  bool span(int slot, uint64_t element_bytes, uint64_t* first, uint64_t* count) const;
  FlatTable required_table(int slot, const std::string& what) const;

  const std::string& what() const { return what_; }
  void rename(const std::string& what) { what_ = what; }
  [[noreturn]] void fail(const std::string& problem) const { buffer_->fail(position_, what_, problem); }

  FlatTable() = default;

 private:
  FlatTable(FlatBuffer& buffer, uint64_t position, const std::string& what);
  uint64_t field(int slot, uint64_t size) const;  // position, 0 if absent
  uint64_t target(int slot) const;                // position, 0 if absent

  FlatBuffer* buffer_ = nullptr;
  uint64_t position_ = 0;
  uint64_t vtable_ = 0;
  uint32_t slots_ = 0;
  uint32_t size_ = 0;
  std::string what_;
};

}  // namespace edge_kit
