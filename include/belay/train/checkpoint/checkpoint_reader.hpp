// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Reads parts of the tensors of a committed checkpoint, whatever mesh has written it. Of each file only the chunks that
// hold what is asked for are read, and each is verified by its checksum before any of it is used.
// IWYU pragma: private, include "belay/train/checkpoint.hpp"
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/box.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/train/checkpoint/checkpoint_folder.hpp"
#include "belay/train/checkpoint/manifest.hpp"
#include "belay/train/safetensors/file.hpp"
#include "belay/train/safetensors/header.hpp"
#include "belay/train/safetensors/reader.hpp"

namespace belay::inline BELAY_ABI {

/// The text of the manifest in the checkpoint `folder`. Throws file_error.
template <files_policy Files = posix_files>
[[nodiscard]] std::string read_manifest_text(const std::string& folder, where at = where::current()) {
  const safetensors::basic_file<Files> in(folder + "/" + std::string(manifest_name), O_RDONLY | O_NONBLOCK, at);
  const std::uint64_t size = in.size(at);
  if (size > largest_manifest) throw file_error(in.path(), 0, "has " + std::to_string(size) + " bytes", at);
  std::string text(static_cast<std::size_t>(size), '\0');
  in.read(0, std::as_writable_bytes(std::span<char>(text.data(), text.size())), at);
  return text;
}

/// One thread reads. Errors are file_error with the file, the byte and the tensor.
template <files_policy Files = posix_files>
class checkpoint_reader {
 public:
  /// The checkpoint in `folder`, whose manifest says `content`. Opens nothing yet.
  checkpoint_reader(std::string folder, manifest content);
  /// The checkpoint in `folder`, whose manifest is read now. Opens no other file yet.
  explicit checkpoint_reader(const std::string& folder, where at = where::current());

  [[nodiscard]] const std::string& folder() const noexcept { return folder_; }
  [[nodiscard]] const manifest& content() const noexcept { return content_; }
  /// Bytes read from files so far.
  [[nodiscard]] std::uint64_t bytes_read() const noexcept { return bytes_read_; }

  /// The tensor called `name`, of `shape`; a file_error where there is none.
  [[nodiscard]] const manifest_tensor& tensor_named(std::string_view name, std::span<const std::uint64_t> shape,
                                                    where at = where::current()) const;
  [[nodiscard]] static bool has_part(const manifest_tensor& from, std::string_view part) noexcept {
    return std::any_of(from.pieces.begin(), from.pieces.end(), [&](const auto& each) { return each.part == part; });
  }

  /// Fills `to` with elements `first` and on of the tensor, of that part of its state: rounded to nearest where T is
  /// narrower. Elements that no piece has, or several, are a file_error.
  template <class T>
  void read(const manifest_tensor& from, std::string_view part, std::uint64_t first, std::span<T> to,
            where at = where::current());

  /// Fills `to` with the bytes of file number `number` from byte `begin` on.
  void read_bytes(std::size_t number, std::uint64_t begin, std::span<std::byte> to, where at = where::current());

 private:
  [[noreturn]] void fail(const std::string& what, where at) const;

  template <class T>
  void read_piece(const manifest_tensor& of, const manifest_piece& piece, std::uint64_t first, std::span<T> to,
                  where at);
  template <class Stored, class T>
  void read_as(const manifest_piece& piece, std::uint64_t first, std::span<T> to, where at);

  static constexpr std::uint64_t ahead = 4 * checkpoint_chunk;  // while a chunk is summed, these are on their way

  [[nodiscard]] std::string path_of(std::size_t number) const { return folder_ + "/" + content_.files[number].name; }

  // A chunk of which a part was asked for, as the next parts will be: of the parts of a state in turn, as an optimizer
  // does that fills itself from a file.
  [[nodiscard]] const std::byte* cached(std::size_t number, std::uint64_t chunk, std::uint64_t length, where at);
  // One chunk, verified.
  void load(std::size_t number, std::uint64_t chunk, std::span<std::byte> to, where at);
  void open(std::size_t number, where at);
  // A whole file in another one's place is named as that. What is damaged is found by its checksum.
  void expect_ours(std::size_t number, where at) const;
  // The first few tensors between two bytes of a file.
  [[nodiscard]] std::string tensors_in(std::size_t number, std::uint64_t begin, std::uint64_t end) const;

  std::string folder_;
  manifest content_;
  std::vector<safetensors::basic_file<Files>> files_;  // open ones
  struct cached_chunk {
    std::unique_ptr<std::array<std::byte, checkpoint_chunk>> memory;
    std::size_t file = 0;
    std::uint64_t chunk = 0, used = 0;  // when; 0: there is nothing in it
  };
  std::array<cached_chunk, 4> cached_;  // three parts of a state, and one more
  std::uint64_t uses_ = 0;
  std::uint64_t bytes_read_ = 0;
};

template <files_policy Files>
checkpoint_reader<Files>::checkpoint_reader(std::string folder, manifest content)
    : folder_(std::move(folder)), content_(std::move(content)), files_(content_.files.size()) {}

template <files_policy Files>
checkpoint_reader<Files>::checkpoint_reader(const std::string& folder, where at)
    : checkpoint_reader(folder, parse_manifest(read_manifest_text<Files>(folder, at),
                                               folder + "/" + std::string(manifest_name), at)) {}

template <files_policy Files>
const manifest_tensor& checkpoint_reader<Files>::tensor_named(std::string_view name,
                                                              std::span<const std::uint64_t> shape, where at) const {
  const manifest_tensor* const found = content_.find(name);
  if (found == nullptr) fail("has no tensor " + printable(std::string(name)), at);
  if (!std::equal(found->shape.begin(), found->shape.end(), shape.begin(), shape.end()))
    fail("tensor " + printable(found->name) + " is " + shape_text(found->shape) + ", the model's is " +
             shape_text(shape),
         at);
  return *found;
}

template <files_policy Files>
template <class T>
void checkpoint_reader<Files>::read(const manifest_tensor& from, std::string_view part, std::uint64_t first,
                                    std::span<T> to, where at) {
  std::uint64_t found = 0;
  for (const manifest_piece& piece : from.pieces) {
    if (piece.part != part) continue;
    const box_runs runs(from.shape, piece.box);
    runs.each_common(piece.first, piece.first + piece.count, first, first + to.size(),
                     [&](std::uint64_t element, std::uint64_t in_box, std::uint64_t count) {
                       found += count;
                       const auto target =
                           to.subspan(static_cast<std::size_t>(element - first), static_cast<std::size_t>(count));
                       read_piece(from, piece, in_box - piece.first, target, at);
                     });
  }
  if (found != to.size())
    fail("of tensor " + printable(from.name) + ", part " + printable(std::string(part)) + ", elements " +
             std::to_string(first) + " to " + std::to_string(first + to.size()) + " are there " +
             (found < to.size() ? "in part only" : "more than once"),
         at);
}

template <files_policy Files>
void checkpoint_reader<Files>::read_bytes(std::size_t number, std::uint64_t begin, std::span<std::byte> to, where at) {
  const std::uint64_t size = content_.files[number].bytes;
  while (!to.empty()) {
    const std::uint64_t chunk = begin / checkpoint_chunk;
    const std::uint64_t from = chunk * checkpoint_chunk;
    const std::uint64_t length = lesser_of(checkpoint_chunk, size - from);
    const std::size_t taken = static_cast<std::size_t>(lesser_of<std::uint64_t>(to.size(), from + length - begin));
    if (taken == length) {  // into place at once
      load(number, chunk, to.first(taken), at);
    } else {
      std::memcpy(to.data(), cached(number, chunk, length, at) + (begin - from), taken);
    }
    to = to.subspan(taken);
    begin += taken;
  }
}

template <files_policy Files>
void checkpoint_reader<Files>::fail(const std::string& what, where at) const {
  throw file_error(folder_ + "/" + std::string(manifest_name), 0, what, at);
}

template <files_policy Files>
template <class T>
void checkpoint_reader<Files>::read_piece(const manifest_tensor& of, const manifest_piece& piece, std::uint64_t first,
                                          std::span<T> to, where at) {
  using safetensors::stored_type;
  switch (piece.type) {
    case stored_type::f64: return read_as<double>(piece, first, to, at);
    case stored_type::f32: return read_as<float>(piece, first, to, at);
    case stored_type::f16: return read_as<fp16>(piece, first, to, at);
    case stored_type::bf16: return read_as<bf16>(piece, first, to, at);
    default:
      throw file_error(path_of(piece.file), piece.begin,
                       "tensor " + printable(of.name) + " holds " + std::string(safetensors::name(piece.type)) +
                           ", which is not read as numbers",
                       at);
  }
}

template <files_policy Files>
template <class Stored, class T>
void checkpoint_reader<Files>::read_as(const manifest_piece& piece, std::uint64_t first, std::span<T> to, where at) {
  const std::uint64_t begin = piece.begin + first * sizeof(Stored);
  if constexpr (std::is_same_v<Stored, T>) {
    read_bytes(piece.file, begin, std::as_writable_bytes(to), at);
  } else {
    Stored some[4096];
    for (std::size_t done = 0; done < to.size(); done += std::size(some)) {
      const std::span<T> next = to.subspan(done, lesser_of(std::size(some), to.size() - done));
      read_bytes(piece.file, begin + done * sizeof(Stored), std::as_writable_bytes(std::span(some).first(next.size())),
                 at);
      for (std::size_t i = 0; i < next.size(); ++i)
        next[i] = static_cast<T>(static_cast<compute_type_t<T>>(static_cast<compute_type_t<Stored>>(some[i])));
    }
  }
}

template <files_policy Files>
const std::byte* checkpoint_reader<Files>::cached(std::size_t number, std::uint64_t chunk, std::uint64_t length,
                                                  where at) {
  cached_chunk* oldest = &cached_[0];
  for (cached_chunk& each : cached_) {
    if (each.used > 0 && each.file == number && each.chunk == chunk) {
      each.used = ++uses_;
      return each.memory->data();
    }
    if (each.used < oldest->used) oldest = &each;
  }
  if (!oldest->memory) oldest->memory = std::make_unique<std::array<std::byte, checkpoint_chunk>>();
  oldest->used = 0;  // nothing, should it fail
  load(number, chunk, std::span(*oldest->memory).first(static_cast<std::size_t>(length)), at);
  oldest->file = number;
  oldest->chunk = chunk;
  oldest->used = ++uses_;
  return oldest->memory->data();
}

template <files_policy Files>
void checkpoint_reader<Files>::load(std::size_t number, std::uint64_t chunk, std::span<std::byte> to, where at) {
  open(number, at);
  const std::uint64_t begin = chunk * checkpoint_chunk;
  files_[number].will_read(begin + to.size(), ahead);
  files_[number].read(begin, to, at);
  bytes_read_ += to.size();
  if (crc32c_of(to) == content_.files[number].checksums[static_cast<std::size_t>(chunk)]) return;
  throw file_error(path_of(number), begin,
                   "the " + std::to_string(to.size()) + " bytes from here on do not match their checksum; they hold " +
                       tensors_in(number, begin, begin + to.size()),
                   at);
}

template <files_policy Files>
void checkpoint_reader<Files>::open(std::size_t number, where at) {
  safetensors::basic_file<Files>& file = files_[number];
  if (file.is_open()) return;
  const manifest_file& expected = content_.files[number];
  safetensors::basic_file<Files> opened(path_of(number), O_RDONLY | O_NONBLOCK, at);
  expect_ours(number, at);
  const std::uint64_t size = opened.size(at);
  if (size != expected.bytes)
    throw file_error(opened.path(), lesser_of(size, expected.bytes),
                     "has " + std::to_string(size) + " bytes, its checkpoint says " + std::to_string(expected.bytes) +
                         "; it holds " + tensors_in(number, lesser_of(size, expected.bytes), ~std::uint64_t{0}),
                     at);
  file = std::move(opened);
}

template <files_policy Files>
void checkpoint_reader<Files>::expect_ours(std::size_t number, where at) const {
  std::string id, name, step;
  try {
    const safetensors::basic_reader<Files> header(path_of(number), at);
    for (const auto& [key, value] : header.metadata()) {
      if (key == "checkpoint") id = value;
      if (key == "file") name = value;
      if (key == "step") step = value;
    }
  } catch (const file_error&) {
    return;
  }
  if (id == content_.id && name == content_.files[number].name && step == padded_step(content_.step)) return;
  throw file_error(path_of(number), 0,
                   name.empty() ? std::string("is no file of a checkpoint")
                                : "is file " + printable(name) + " of step " + printable(step) + " of run " +
                                      printable(id) + ": it belongs to another place",
                   at);
}

template <files_policy Files>
std::string checkpoint_reader<Files>::tensors_in(std::size_t number, std::uint64_t begin, std::uint64_t end) const {
  std::string out;
  std::size_t count = 0;
  for (const manifest_tensor& each : content_.tensors)
    for (const manifest_piece& piece : each.pieces) {
      if (piece.file != number || piece.begin >= end || piece.begin + piece.bytes() <= begin) continue;
      if (++count > 3) continue;
      out += (out.empty() ? "" : ", ") + (piece.part + " of tensor " + printable(each.name));
    }
  if (count > 3) out += " and " + std::to_string(count - 3) + " more";
  return out.empty() ? "the header" : out;
}

}  // namespace belay::inline BELAY_ABI
