// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Reads a file of events as TensorBoard does, and shares no code with its writer: any byte that is not as the formats
// of records and protocol buffers say is an exception.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace report_test {

struct event {
  double wall_time = 0;
  std::uint64_t step = 0;
  std::string version;
  bool starts = false;  // a session: what earlier files have from here on is void
  std::map<std::string, double> scalars;
  std::map<std::string, std::string> texts;
};

// Bit by bit, as the polynomial says.
inline std::uint32_t checksum(std::string_view bytes) {
  std::uint32_t state = 0xffffffffU;
  for (const char c : bytes) {
    state ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1U) ^ (0x82f63b78U & (0U - (state & 1U)));
  }
  state = ~state;
  return ((state >> 15U) | (state << 17U)) + 0xa282ead8U;
}

class fields {
 public:
  explicit fields(std::string_view bytes) : rest_(bytes) {}

  // The next field; false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t key = number();
    field = key >> 3U;
    switch (key & 7U) {
      case 0: value = number(); break;
      case 1: value = word(8); break;
      case 2: text = take(number()); break;
      case 5: value = word(4); break;
      default: throw std::runtime_error("a field of a kind that there is not");
    }
    return true;
  }

  std::uint64_t field = 0, value = 0;
  std::string_view text;

 private:
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) throw std::runtime_error("a field is cut off");
    const std::string_view out = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return out;
  }
  std::uint64_t number() {
    std::uint64_t out = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      out |= std::uint64_t{byte & 0x7fU} << shift;
      if ((byte & 0x80U) == 0) return out;
      if (shift > 56) throw std::runtime_error("a number without end");
    }
  }
  std::uint64_t word(std::size_t bytes) {
    std::uint64_t out = 0;
    const std::string_view from = take(bytes);
    for (std::size_t i = 0; i < bytes; ++i) out |= std::uint64_t{static_cast<unsigned char>(from[i])} << (8 * i);
    return out;
  }

  std::string_view rest_;
};

inline std::string text_of_tensor(std::string_view bytes) {
  std::string out;
  std::uint64_t type = 0, size = 0;
  for (fields tensor(bytes); tensor.next();) {
    if (tensor.field == 1) type = tensor.value;
    if (tensor.field == 2)
      for (fields shape(tensor.text); shape.next();)
        for (fields dimension(shape.text); dimension.next();) size = dimension.value;
    if (tensor.field == 8) out = tensor.text;
  }
  if (type != 7 || size != 1) throw std::runtime_error("a text is a tensor of one string");
  return out;
}

inline void read_value(std::string_view bytes, event& into) {
  std::string tag, plug_in;
  std::string_view tensor;
  bool is_scalar = false;
  float scalar = 0;
  for (fields value(bytes); value.next();) {
    if (value.field == 1) tag = value.text;
    if (value.field == 2) {
      const auto bits = static_cast<std::uint32_t>(value.value);
      std::memcpy(&scalar, &bits, sizeof scalar), is_scalar = true;
    }
    if (value.field == 8) tensor = value.text;
    if (value.field == 9)
      for (fields metadata(value.text); metadata.next();)
        if (metadata.field == 1)
          for (fields of(metadata.text); of.next();)
            if (of.field == 1) plug_in = of.text;
  }
  if (is_scalar) {
    if (!into.scalars.emplace(tag, scalar).second) throw std::runtime_error("a tag twice in an event: " + tag);
    return;
  }
  if (plug_in != "text") throw std::runtime_error("a value that is neither a scalar nor a text: " + tag);
  into.texts[tag] = text_of_tensor(tensor);
}

inline std::vector<event> read_events(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<event> out;
  const auto word = [&](std::size_t at, std::size_t bytes) {
    if (at + bytes > all.size()) throw std::runtime_error("a record is cut off");
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) value |= std::uint64_t{static_cast<unsigned char>(all[at + i])} << (8 * i);
    return value;
  };
  for (std::size_t at = 0; at < all.size();) {
    const std::uint64_t length = word(at, 8);
    if (word(at + 8, 4) != checksum(std::string_view(all).substr(at, 8)))
      throw std::runtime_error("the checksum of a length");
    const std::string_view data = std::string_view(all).substr(at + 12, length);
    if (word(at + 12 + length, 4) != checksum(data)) throw std::runtime_error("the checksum of an event");
    at += 16 + length;
    event& one = out.emplace_back();
    for (fields of(data); of.next();) {
      if (of.field == 1) std::memcpy(&one.wall_time, &of.value, sizeof one.wall_time);
      if (of.field == 2) one.step = of.value;
      if (of.field == 3) one.version = of.text;
      if (of.field == 5)
        for (fields summary(of.text); summary.next();) read_value(summary.text, one);
      if (of.field == 7) one.starts = of.text == std::string_view("\x08\x01", 2);
    }
  }
  return out;
}

}  // namespace report_test
