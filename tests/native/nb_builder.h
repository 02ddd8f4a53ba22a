// Writes small `.nb` files in memory, sound ones and such as no sound writer would make.
//
// A Value is one field of a FlatBuffers table: inline bytes, or a child that is written behind the table.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace nb {

using Bytes = std::vector<uint8_t>;

struct Value {
  Bytes inline_bytes;
  std::function<size_t(Bytes&)> child;  // appends itself, gives its position
};
using Table = std::map<int, Value>;  // slot -> field

template <typename T>
void append(Bytes& out, T value) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

template <typename T>
void patch(Bytes& out, size_t position, T value) {
  std::memcpy(out.data() + position, &value, sizeof value);
}

template <typename T>
Value scalar(T value) {
  Value result;
  append(result.inline_bytes, value);
  return result;
}

template <typename T>
Value numbers(const std::vector<T>& values) {
  return {{}, [values](Bytes& out) {
            const size_t position = out.size();
            append(out, static_cast<uint32_t>(values.size()));
            for (T value : values) append(out, value);
            return position;
          }};
}

inline Value text(const std::string& value) {
  return numbers(std::vector<char>(value.begin(), value.end()));
}

inline size_t write_table(Bytes& out, const Table& fields) {
  const int slots = fields.empty() ? 0 : fields.rbegin()->first + 1;
  const size_t vtable = out.size();
  out.resize(vtable + 4 + 2 * static_cast<size_t>(slots));
  const size_t table = out.size();
  append(out, static_cast<int32_t>(table - vtable));
  std::vector<std::pair<size_t, const Value*>> children;
  for (const auto& field : fields) {
    patch(out, vtable + 4 + 2 * static_cast<size_t>(field.first), static_cast<uint16_t>(out.size() - table));
    if (field.second.child) {
      children.emplace_back(out.size(), &field.second);
      append(out, uint32_t{0});
    } else {
      out.insert(out.end(), field.second.inline_bytes.begin(), field.second.inline_bytes.end());
    }
  }
  patch(out, vtable, static_cast<uint16_t>(4 + 2 * slots));
  patch(out, vtable + 2, static_cast<uint16_t>(out.size() - table));
  for (const auto& child : children) {
    const size_t position = child.second->child(out);
    patch(out, child.first, static_cast<uint32_t>(position - child.first));
  }
  return table;
}

inline Value table(const Table& fields) {
  return {{}, [fields](Bytes& out) { return write_table(out, fields); }};
}

// A vector of texts or tables.
inline Value list(const std::vector<Value>& values) {
  return {{}, [values](Bytes& out) {
            const size_t position = out.size();
            append(out, static_cast<uint32_t>(values.size()));
            const size_t first = out.size();
            out.resize(first + 4 * values.size());
            for (size_t i = 0; i < values.size(); ++i) {
              const size_t child = values[i].child(out);
              patch(out, first + 4 * i, static_cast<uint32_t>(child - (first + 4 * i)));
            }
            return position;
          }};
}

// A vector whose `count` elements are all the same table.
inline Value repeated(const Value& value, uint32_t count) {
  return {{}, [value, count](Bytes& out) {
            const size_t position = out.size();
            append(out, count);
            const size_t first = out.size();
            out.resize(first + 4 * static_cast<size_t>(count));
            const size_t child = value.child(out);
            for (size_t i = 0; i < count; ++i) {
              patch(out, first + 4 * i, static_cast<uint32_t>(child - (first + 4 * i)));
            }
            return position;
          }};
}

inline Bytes flat_buffer(const Table& root) {
  Bytes out(4);
  const size_t position = write_table(out, root);
  patch(out, 0, static_cast<uint32_t>(position));
  return out;
}

inline Value argument(const std::string& parameter, const std::vector<Value>& names) {
  return table({{0, text(parameter)}, {1, list(names)}});
}

inline Value attribute(const std::string& name, int32_t type, int slot, const Value& value) {
  return table({{0, text(name)}, {1, scalar(type)}, {slot, value}});
}

inline Value op(const std::string& type, const std::vector<Value>& inputs, const std::vector<Value>& outputs,
                const std::vector<Value>& attributes) {
  return table({{0, text(type)}, {1, list(inputs)}, {2, list(outputs)}, {3, list(attributes)}});
}

constexpr int32_t kFloat32 = 5, kInt8 = 21;

inline Value variable(const std::string& name, int32_t element, const std::vector<int64_t>& shape,
                      bool persistable) {
  const Value tensor = table({{0, table({{0, scalar(element)}, {1, numbers(shape)}})}});
  const Value kind = table({{0, scalar(int32_t{7})}, {2, tensor}});
  return table({{0, text(name)}, {1, kind}, {2, scalar(static_cast<uint8_t>(persistable))}});
}

inline Bytes program(const std::vector<Value>& ops, const std::vector<Value>& variables) {
  const Value block = table({{2, list(variables)}, {3, list(ops)}});
  return flat_buffer({{0, list({block})}, {1, table({{0, scalar(int64_t{3001001})}})}});
}

inline Bytes param(const std::string& name, int32_t element, const std::vector<int64_t>& shape,
                   const Bytes& data) {
  const Value tensor = table({{2, numbers(shape)}, {3, scalar(element)}, {4, numbers(data)}});
  return flat_buffer({{1, text(name)}, {2, scalar(uint8_t{1})}, {3, tensor}});
}

// `padding` bytes stand before each ParamDesc.
inline Bytes file(const Bytes& program, const std::vector<Bytes>& params, size_t padding = 0) {
  Bytes out;
  append(out, uint16_t{2});
  const char version[16] = "v2.13-rc";
  out.insert(out.end(), version, version + sizeof version);
  append(out, static_cast<uint64_t>(program.size()));
  out.insert(out.end(), program.begin(), program.end());
  for (uint16_t field : {0, 0, 6, static_cast<int>(params.size())}) append(out, field);
  append(out, uint32_t{0});  // the largest tensor: nobody relies on it
  for (const Bytes& param : params) {
    append(out, static_cast<uint32_t>(4 + padding + param.size()));
    append(out, static_cast<uint32_t>(4 + padding));
    out.insert(out.end(), padding, 0);
    out.insert(out.end(), param.begin(), param.end());
  }
  return out;
}

}  // namespace nb
