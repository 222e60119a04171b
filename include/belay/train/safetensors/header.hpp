// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The header of a safetensors file is JSON from outside, so it is read by a parser of its own that knows
// this one shape and nothing else: no recursion, no allocation before the bytes that ask for it were seen,
// and every refusal names the byte. It is stricter than the format's reference implementation: unknown
// fields, names twice and numbers that are not plain integers are refused instead of being guessed at.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/train/safetensors/scanner.hpp"
#include "belay/train/safetensors/stored_type.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

inline constexpr std::uint64_t largest_header = 100'000'000;             // bytes
inline constexpr std::uint64_t largest_number = std::uint64_t{1} << 48;  // any number of a header
inline constexpr std::size_t largest_name = 4096;                        // bytes
inline constexpr std::size_t most_tensors = std::size_t{1} << 20;

/// One tensor of a file: bytes [begin, end) counted from the first byte after the header.
struct tensor {
  std::string name;
  stored_type type = stored_type::f32;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t bytes() const noexcept { return end - begin; }
  [[nodiscard]] std::uint64_t elements() const noexcept {
    std::uint64_t count = 1;
    for (std::uint64_t extent : shape) count *= extent;
    return count;
  }
};

/// Free text about a file, as key and value.
using metadata_list = std::vector<std::pair<std::string, std::string>>;

/// What a header says; tensors in the order of their bytes, metadata in the order of the text.
struct header {
  std::vector<tensor> tensors;
  metadata_list metadata;
};

/// Bytes that `shape` elements of `type` take: false when they overflow or end inside a byte.
[[nodiscard]] inline bool size_in_bytes(stored_type type, const std::vector<std::uint64_t>& shape,
                                        std::uint64_t& bytes) noexcept {
  std::uint64_t total = bits(type);
  for (std::uint64_t extent : shape) {
    if (__builtin_mul_overflow(total, extent, &total)) return false;
  }
  bytes = total / 8;
  return total % 8 == 0;
}

/// Reads one header. `text` is the JSON, `data_bytes` what the file holds after it; offsets of errors are
/// counted from the file's beginning, where the text starts at byte 8.
class header_parser {
 public:
  header_parser(std::string_view text, std::uint64_t data_bytes, const std::string& path, where at)
      : scan_(text, path, at), data_bytes_(data_bytes) {}

  [[nodiscard]] header parse() {
    scan_.check_utf8();
    if (scan_.size() == 0 || scan_.peek() != '{') scan_.fail(0, "the header does not begin with {");
    scan_.take('{');
    if (!scan_.take_if('}')) {
      do {
        entry();
      } while (scan_.take_if(','));
      scan_.take('}');
    }
    scan_.finish();
    refuse_twice(names_, "tensor");
    check_offsets();
    header result;
    result.metadata = std::move(metadata_);
    result.tensors.reserve(found_.size());
    for (found& each : found_) result.tensors.push_back(std::move(each.what));
    return result;
  }

 private:
  struct found {
    tensor what;
    std::size_t at = 0;  // where its entry begins
  };
  struct named {
    std::string name;
    std::size_t at = 0;
  };

  void entry() {
    const std::size_t at = scan_.next();
    std::string name = scan_.string(largest_name, "a tensor's name");
    scan_.take(':');
    if (name == "__metadata__") {
      if (has_metadata_) scan_.fail(at, "__metadata__ appears twice");
      has_metadata_ = true;
      read_metadata();
      return;
    }
    if (name.find('\0') != std::string::npos) scan_.fail(at, "a tensor's name holds a NUL");
    if (name.find("..") != std::string::npos) scan_.fail(at, "a tensor's name holds \"..\"");
    if (found_.size() == most_tensors) scan_.fail(at, "more than " + std::to_string(most_tensors) + " tensors");
    names_.push_back({name, at});
    found_.push_back({read_tensor(std::move(name)), at});
  }

  void read_metadata() {
    std::vector<named> keys;
    scan_.take('{');
    if (scan_.take_if('}')) return;
    do {
      const std::size_t at = scan_.next();
      std::string key = scan_.string(largest_header, "a metadata key");
      scan_.take(':');
      std::string value = scan_.string(largest_header, "a metadata value");
      keys.push_back({key, at});
      metadata_.emplace_back(std::move(key), std::move(value));
    } while (scan_.take_if(','));
    scan_.take('}');
    refuse_twice(keys, "metadata key");
  }

  [[nodiscard]] tensor read_tensor(std::string name) {
    constexpr unsigned dtype = 1;
    constexpr unsigned shape = 2;
    constexpr unsigned offsets = 4;
    tensor result;
    result.name = std::move(name);
    unsigned seen = 0;
    const std::size_t begin = scan_.next();
    scan_.take('{');
    if (scan_.next_is('}')) scan_.fail(begin, "tensor " + result.name + " has no fields");
    do {
      const std::size_t at = scan_.next();
      const std::string key = scan_.string(largest_name, "a field's name");
      scan_.take(':');
      const unsigned which = key == "dtype" ? dtype : key == "shape" ? shape : key == "data_offsets" ? offsets : 0U;
      if (which == 0) scan_.fail(at, "tensor " + result.name + " has the unknown field \"" + key + "\"");
      if ((seen & which) != 0) scan_.fail(at, "tensor " + result.name + " has the field " + key + " twice");
      seen |= which;
      if (which == dtype) read_type(result);
      if (which == shape) read_shape(result);
      if (which == offsets) read_offsets(result);
    } while (scan_.take_if(','));
    scan_.take('}');
    if ((seen & dtype) == 0) scan_.fail(begin, "tensor " + result.name + " has no dtype");
    if ((seen & shape) == 0) scan_.fail(begin, "tensor " + result.name + " has no shape");
    if ((seen & offsets) == 0) scan_.fail(begin, "tensor " + result.name + " has no data_offsets");
    check_size(result, begin);
    return result;
  }

  void read_type(tensor& result) {
    const std::size_t at = scan_.next();
    const std::string text = scan_.string(largest_name, "a dtype");
    const stored_facts* facts = find_stored_type(text);
    if (facts == nullptr) scan_.fail(at, "tensor " + result.name + " has the unknown dtype \"" + text + "\"");
    result.type = facts->type;
  }

  void read_shape(tensor& result) {
    scan_.take('[');
    if (scan_.take_if(']')) return;
    do {
      result.shape.push_back(scan_.integer(largest_number));
    } while (scan_.take_if(','));
    scan_.take(']');
  }

  void read_offsets(tensor& result) {
    scan_.take('[');
    result.begin = scan_.integer(largest_number);
    scan_.take(',');
    result.end = scan_.integer(largest_number);
    scan_.take(']');
  }

  void check_size(const tensor& result, std::size_t at) const {
    if (result.end < result.begin) scan_.fail(at, "tensor " + result.name + " ends before it begins");
    std::uint64_t bytes = 0;
    if (!size_in_bytes(result.type, result.shape, bytes)) {
      scan_.fail(at, "the size of tensor " + result.name + " overflows or ends inside a byte");
    }
    if (bytes != result.bytes()) {
      scan_.fail(at, "tensor " + result.name + " needs " + std::to_string(bytes) + " bytes, its data_offsets give " +
                         std::to_string(result.bytes()));
    }
  }

  void refuse_twice(std::vector<named>& names, const char* what) const {
    std::sort(names.begin(), names.end(), [](const named& a, const named& b) {
      const int order = a.name.compare(b.name);
      return order != 0 ? order < 0 : a.at < b.at;
    });
    for (std::size_t i = 1; i < names.size(); ++i) {
      if (names[i].name == names[i - 1].name) {
        scan_.fail(names[i].at, std::string(what) + " " + names[i].name + " appears twice");
      }
    }
  }

  void check_offsets() {
    std::sort(found_.begin(), found_.end(), [](const found& a, const found& b) {
      if (a.what.begin != b.what.begin) return a.what.begin < b.what.begin;
      return a.what.end != b.what.end ? a.what.end < b.what.end : a.at < b.at;
    });
    std::uint64_t end = 0;
    for (const found& each : found_) {
      if (each.what.begin != end) {
        scan_.fail(each.at, "tensor " + each.what.name + " begins at byte " + std::to_string(each.what.begin) +
                                " of the data, the one before ends at " + std::to_string(end));
      }
      end = each.what.end;
    }
    if (end != data_bytes_) {
      scan_.fail(scan_.size(), "the tensors take " + std::to_string(end) + " bytes, the file holds " +
                                   std::to_string(data_bytes_) + " after the header");
    }
  }

  header_scanner scan_;
  std::uint64_t data_bytes_;
  bool has_metadata_ = false;
  metadata_list metadata_;
  std::vector<found> found_;
  std::vector<named> names_;
};

/// The header `text` describes, or file_error with the byte (counted from the file's beginning) and the reason.
[[nodiscard]] inline header parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& path,
                                         where at = where::current()) {
  return header_parser(text, data_bytes, path, at).parse();
}

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
