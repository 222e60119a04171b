// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The parser of the header of a safetensors file, and what is asked of its tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/train/safetensors/header.hpp"
#include "belay/train/safetensors/scanner.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

BELAY_DECL std::uint64_t tensor::elements() const noexcept {
  std::uint64_t count = 1;
  for (std::uint64_t extent : shape) count *= extent;
  return count;
}

/// The positions 0 to count - 1, sorted: `before(a, b)` says whether position a comes before position b. Equal ones
/// keep their order. Headers come from outside: no order of their entries makes it quadratic.
template <class Before>
[[nodiscard]] std::vector<std::size_t> order_of(std::size_t count, Before before) {
  std::vector<std::size_t> out(count);
  std::iota(out.begin(), out.end(), std::size_t{0});
  std::stable_sort(out.begin(), out.end(), before);
  return out;
}

BELAY_DECL std::vector<std::size_t> order_by_name(const std::vector<tensor>& tensors) {
  return order_of(tensors.size(),
                  [&](std::size_t a, std::size_t b) { return tensors[a].name.compare(tensors[b].name) < 0; });
}

BELAY_DECL const tensor* find_tensor(const std::vector<tensor>& tensors, const std::vector<std::size_t>& by_name,
                                     std::string_view name) noexcept {
  std::size_t first = 0;
  std::size_t last = by_name.size();
  while (first < last) {
    const std::size_t middle = first + (last - first) / 2;
    const tensor& candidate = tensors[by_name[middle]];
    const int order = name.compare(candidate.name);
    if (order == 0) return &candidate;
    (order < 0 ? last : first) = order < 0 ? middle : middle + 1;
  }
  return nullptr;
}

BELAY_DECL void expect_range(const tensor& of, std::string_view units, std::uint64_t first, std::uint64_t count,
                             std::uint64_t all, where at) {
  if (first <= all && count <= all - first) return;
  throw usage_error(std::string(units) + " " + std::to_string(first) + " to " + std::to_string(first + count) +
                        " of tensor " + printable(of.name) + ", which has " + std::to_string(all),
                    at);
}

BELAY_DECL bool size_in_bytes(stored_type type, const std::vector<std::uint64_t>& shape,
                              std::uint64_t& bytes) noexcept {
  std::uint64_t total = bits(type);
  for (std::uint64_t extent : shape) {
    if (__builtin_mul_overflow(total, extent, &total)) return false;
  }
  bytes = total / 8;
  return total % 8 == 0;
}

/// Reads one header. `text` is the JSON, and `data_bytes` are the bytes after it. Errors count bytes from the beginning
/// of the file, where the text starts at byte 8.
template <class Scanner>
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
    refuse_twice(found_at_, "tensor", [this](std::size_t i) -> const std::string& { return found_[i].name; });
    header result;
    result.metadata = std::move(metadata_);
    result.tensors.reserve(found_.size());
    for (std::size_t i : checked_offsets()) result.tensors.push_back(std::move(found_[i]));
    return result;
  }

 private:
  void entry() {
    const std::size_t at = scan_.next();
    std::string name = scan_.string(largest_name, "a tensor's name");
    scan_.take(':');
    if (name == "__metadata__") {
      if (has_metadata_) scan_.fail(at, "__metadata__ appears twice");
      has_metadata_ = true;
      if (!scan_.take_null()) read_metadata();  // the reference implementation writes null where there is none
      return;
    }
    if (name.find('\0') != std::string::npos) scan_.fail(at, "a tensor's name holds a NUL");
    if (name.find("..") != std::string::npos) scan_.fail(at, "a tensor's name holds \"..\"");
    if (found_.size() == most_tensors) scan_.fail(at, "more than " + std::to_string(most_tensors) + " tensors");
    found_.push_back(read_tensor(std::move(name)));
    found_at_.push_back(at);
  }

  void read_metadata() {
    std::vector<std::size_t> keys_at;
    scan_.take('{');
    if (scan_.take_if('}')) return;
    do {
      keys_at.push_back(scan_.next());
      std::string key = scan_.string(largest_header, "a metadata key");
      scan_.take(':');
      std::string value = scan_.string(largest_header, "a metadata value");
      metadata_.emplace_back(std::move(key), std::move(value));
    } while (scan_.take_if(','));
    scan_.take('}');
    refuse_twice(keys_at, "metadata key", [this](std::size_t i) -> const std::string& { return metadata_[i].first; });
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

  // `name(i)` is the name of the entry that begins at `entries_at[i]`, in the order of the text.
  template <class Name>
  void refuse_twice(const std::vector<std::size_t>& entries_at, const char* what, Name name) const {
    const std::vector<std::size_t> order =
        order_of(entries_at.size(), [&](std::size_t a, std::size_t b) { return name(a).compare(name(b)) < 0; });
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (name(order[i]) != name(order[i - 1])) continue;
      scan_.fail(entries_at[order[i]], std::string(what) + " " + name(order[i]) + " appears twice");
    }
  }

  // The tensors in the order of their bytes, which must leave no gap and not overlap.
  [[nodiscard]] std::vector<std::size_t> checked_offsets() const {
    std::vector<std::size_t> order = order_of(found_.size(), [this](std::size_t a, std::size_t b) {
      return found_[a].begin != found_[b].begin ? found_[a].begin < found_[b].begin : found_[a].end < found_[b].end;
    });
    std::uint64_t end = 0;
    for (std::size_t i : order) {
      if (found_[i].begin != end) {
        scan_.fail(found_at_[i], "tensor " + found_[i].name + " begins at byte " + std::to_string(found_[i].begin) +
                                     " of the data, the one before ends at " + std::to_string(end));
      }
      end = found_[i].end;
    }
    if (end != data_bytes_) {
      scan_.fail(scan_.size(), "the tensors take " + std::to_string(end) + " bytes, the file holds " +
                                   std::to_string(data_bytes_) + " after the header");
    }
    return order;
  }

  Scanner scan_;
  std::uint64_t data_bytes_;
  bool has_metadata_ = false;
  metadata_list metadata_;
  std::vector<tensor> found_;          // in the order of the text
  std::vector<std::size_t> found_at_;  // where their entries begin
};

template <class Scanner>
header parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& path, where at) {
  return header_parser<Scanner>(text, data_bytes, path, at).parse();
}

#if defined(BELAY_SEPARATE_COMPILATION)
template header parse_header<header_scanner>(std::string_view, std::uint64_t, const std::string&, where);
#endif

BELAY_DECL metadata_list usual_metadata() {
  metadata_list list;
  list.emplace_back(std::string("format"), std::string("pt"));
  return list;
}

// JSON holds valid UTF-8 only: another text would be read back changed.
BELAY_DECL void expect_utf8(std::string_view text, const char* what, where at) {
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(utf8_length(rest))) {
    if (utf8_length(rest) != 0) continue;
    throw usage_error(
        std::string("these tensors cannot be written: ") + what + " is not valid UTF-8: " + printable(text), at);
  }
}

template <class Scanner>
layout lay_out(const std::vector<declaration>& tensors, const metadata_list& about, where at) {
  layout result;
  std::string text = "{";
  if (!about.empty()) {
    text += "\"__metadata__\":{";
    for (std::size_t i = 0; i < about.size(); ++i) {
      if (i != 0) text += ',';
      expect_utf8(about[i].first, "a metadata key", at);
      expect_utf8(about[i].second, "a metadata value", at);
      append_json(text, about[i].first);
      text += ':';
      append_json(text, about[i].second);
    }
    text += '}';
  }
  std::uint64_t begin = 0;
  std::set<std::string_view> names;
  for (const declaration& each : tensors) {
    std::uint64_t bytes = 0;
    if (!names.insert(each.name).second)
      throw usage_error("tensor " + printable(each.name) + " is declared twice", at);
    if (each.name == "__metadata__") throw usage_error("no tensor can be called __metadata__", at);
    if (!size_in_bytes(each.type, each.shape, bytes) || __builtin_add_overflow(begin, bytes, &result.data_bytes)) {
      throw usage_error("the size of tensor " + each.name + " overflows or ends inside a byte", at);
    }
    if (text.size() > 1) text += ',';
    expect_utf8(each.name, "a tensor's name", at);
    append_json(text, each.name);
    text += ":{\"dtype\":\"";
    text += name(each.type);
    text += "\",\"shape\":[";
    for (std::size_t i = 0; i < each.shape.size(); ++i) {
      if (i != 0) text += ',';
      text += std::to_string(each.shape[i]);
    }
    text += "],\"data_offsets\":[" + std::to_string(begin) + ',' + std::to_string(result.data_bytes) + "]}";
    result.tensors.push_back({each.name, each.type, each.shape, begin, result.data_bytes});
    begin = result.data_bytes;
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > largest_header) throw usage_error("the header is larger than 100,000,000 bytes", at);
  try {
    static_cast<void>(parse_header<Scanner>(text, result.data_bytes, "declared tensors", at));
  } catch (const file_error& refused) {
    throw usage_error(std::string("these tensors cannot be written: ") + refused.what(), at);
  }
  std::uint64_t length = text.size();
  for (int i = 0; i < 8; ++i, length >>= 8U)
    result.prefix += static_cast<char>(static_cast<unsigned char>(length & 0xFFU));
  result.prefix += text;
  return result;
}

#if defined(BELAY_SEPARATE_COMPILATION)
template layout lay_out<header_scanner>(const std::vector<declaration>&, const metadata_list&, where);
#endif

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
