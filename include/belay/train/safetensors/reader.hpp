// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Opens a file, checks its header once, and then reads ranges of tensors into the caller's memory. It uses pread, not
// a mapping: a file that shrinks meanwhile is an error, not a signal.
// IWYU pragma: private, include "belay/train/safetensors.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/train/safetensors/file.hpp"
#include "belay/train/safetensors/header.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

/// The tensors of one file. Several threads may read at once.
template <files_policy Files>
class basic_reader {
 public:
  /// Opens and checks `path`. Anything wrong with it is a file_error.
  explicit basic_reader(std::string path, where at = where::current());

  [[nodiscard]] const std::string& path() const noexcept { return file_.path(); }

  /// All tensors in the order of their bytes; valid as long as the reader.
  [[nodiscard]] const std::vector<tensor>& tensors() const noexcept { return header_.tensors; }
  [[nodiscard]] const metadata_list& metadata() const noexcept { return header_.metadata; }

  /// The tensor called `name`, or null.
  [[nodiscard]] const tensor* find(std::string_view name) const noexcept {
    return find_tensor(header_.tensors, by_name_, name);
  }

  /// The tensor called `name`; a file_error where there is none.
  [[nodiscard]] const tensor& tensor_named(std::string_view name, where at = where::current()) const;

  /// Fills `destination` with the elements of tensor `name` from `first_element` on, in row-major order. The stored
  /// type must be that of T: nothing is converted. A range outside of the tensor is a usage_error.
  template <class T>
  void read(std::string_view name, std::uint64_t first_element, std::span<T> destination,
            where at = where::current()) const;

  /// Fills `destination` with the elements of tensor `name`, which is in F64, F32, F16 or BF16, from `first_element`
  /// on, in row-major order. They become T: rounded to nearest where T is narrower. A range outside of the tensor is a
  /// usage_error.
  template <class T>
  requires(dtype_of<T> == dtype::f32 || dtype_of<T> == dtype::bf16 || dtype_of<T> == dtype::f16 ||
           dtype_of<T> == dtype::f64) void read_converted(std::string_view name, std::uint64_t first_element,
                                                          std::span<T> destination, where at = where::current()) const {
    switch (tensor_named(name, at).type) {
      case stored_type::f64: return read_as<double>(name, first_element, destination, at);
      case stored_type::f32: return read_as<float>(name, first_element, destination, at);
      case stored_type::f16: return read_as<fp16>(name, first_element, destination, at);
      case stored_type::bf16: return read_as<bf16>(name, first_element, destination, at);
      default: return read(name, first_element, destination, at);  // which refuses it
    }
  }

  /// Fills `destination` with the raw bytes of tensor `name` from `first_byte` on, whatever its type.
  void read_bytes(std::string_view name, std::uint64_t first_byte, std::span<std::byte> destination,
                  where at = where::current()) const;

 private:
  // A piece at a time.
  template <class Stored, class T>
  void read_as(std::string_view name, std::uint64_t first_element, std::span<T> destination, where at) const;

  basic_file<Files> file_;
  std::uint64_t data_begin_ = 0;
  header header_;
  std::vector<std::size_t> by_name_;
};

template <files_policy Files>
basic_reader<Files>::basic_reader(std::string path, where at)
    : file_(std::move(path), O_RDONLY | O_NONBLOCK, at) {  // a pipe is refused below, not waited for
  const std::uint64_t size = file_.size(at);
  if (size < 8) throw file_error(file_.path(), size, "is too short for a safetensors file", at);
  std::byte prefix[8];
  file_.read(0, prefix, at);
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8U | std::to_integer<std::uint64_t>(prefix[i]);
  if (length > largest_header) {
    throw file_error(file_.path(), 0, "claims a header of " + std::to_string(length) + " bytes", at);
  }
  if (length > size - 8) {
    throw file_error(
        file_.path(), 0,
        "claims a header of " + std::to_string(length) + " bytes and has " + std::to_string(size - 8) + " left", at);
  }
  // The file has these bytes: memory is never allocated for a length that is only claimed.
  std::string text(static_cast<std::size_t>(length), '\0');
  file_.read(8, std::as_writable_bytes(std::span<char>(text.data(), text.size())), at);
  data_begin_ = 8 + length;
  header_ = parse_header(text, size - data_begin_, file_.path(), at);
  by_name_ = order_by_name(header_.tensors);
}

template <files_policy Files>
const tensor& basic_reader<Files>::tensor_named(std::string_view name, where at) const {
  const tensor* found = find(name);
  if (found == nullptr) throw file_error(path(), 0, "has no tensor " + std::string(name), at);
  return *found;
}

template <files_policy Files>
template <class T>
void basic_reader<Files>::read(std::string_view name, std::uint64_t first_element, std::span<T> destination,
                               where at) const {
  static_assert(element<T>, "this type has no safetensors dtype (belay::dtype lists those that have)");
  if constexpr (element<T>) {
    const tensor& from = tensor_named(name, at);
    if (from.type != stored_as<T>) {
      throw file_error(path(), data_begin_ + from.begin,
                       "tensor " + from.name + " holds " + std::string(safetensors::name(from.type)) + ", " +
                           std::string(safetensors::name(stored_as<T>)) + " was asked for",
                       at);
    }
    expect_range(from, "elements", first_element, destination.size(), from.elements(), at);
    file_.read(data_begin_ + from.begin + first_element * sizeof(T), std::as_writable_bytes(destination), at);
  }
}

template <files_policy Files>
void basic_reader<Files>::read_bytes(std::string_view name, std::uint64_t first_byte, std::span<std::byte> destination,
                                     where at) const {
  const tensor& from = tensor_named(name, at);
  expect_range(from, "bytes", first_byte, destination.size(), from.bytes(), at);
  file_.read(data_begin_ + from.begin + first_byte, destination, at);
}

template <files_policy Files>
template <class Stored, class T>
void basic_reader<Files>::read_as(std::string_view name, std::uint64_t first_element, std::span<T> destination,
                                  where at) const {
  if constexpr (std::is_same_v<Stored, T>) {
    read(name, first_element, destination, at);
  } else {
    Stored piece[4096];
    for (std::size_t done = 0; done < destination.size() || done == 0; done += std::size(piece)) {
      const std::span<T> to = destination.subspan(done, lesser_of(std::size(piece), destination.size() - done));
      read(name, first_element + done, std::span(piece).first(to.size()), at);
      for (std::size_t i = 0; i < to.size(); ++i)
        to[i] = static_cast<T>(static_cast<compute_type_t<T>>(static_cast<compute_type_t<Stored>>(piece[i])));
    }
  }
}

using reader = basic_reader<posix_files>;

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
