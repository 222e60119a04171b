// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Writes a whole model. All tensors are declared first, so every byte's position is known, and ranks may write their
// parts in any order and at the same time. Until commit() the bytes are in a temporary file beside the target. A
// crash, an error or a destroyed writer leaves an earlier file untouched.
// IWYU pragma: private, include "belay/train/safetensors.hpp"
#pragma once

#include <unistd.h>  // getpid

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"
#include "belay/train/safetensors/file.hpp"
#include "belay/train/safetensors/header.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

template <files_policy Files>
class basic_writer {
 public:
  /// Creates the temporary file (mode 0600) and writes the header. Tensors are stored in the order given.
  explicit basic_writer(std::string path, const std::vector<declaration>& tensors,
                        const metadata_list& about = usual_metadata(), where at = where::current())
      : path_(std::move(path)),
        layout_(lay_out(tensors, about, at)),
        by_name_(order_by_name(layout_.tensors)),
        written_(layout_.tensors.size()) {
    open_temporary(at);
    try {
      file_.write(0, std::as_bytes(std::span<const char>(layout_.prefix.data(), layout_.prefix.size())), at);
    } catch (...) {
      abandon();
      throw;
    }
  }

  basic_writer(const basic_writer&) = delete;
  basic_writer& operator=(const basic_writer&) = delete;

  /// Removes the temporary file unless commit() has made it the target.
  ~basic_writer() { abandon(); }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return layout_.file_bytes(); }

  /// Writes elements of tensor `name` from `first_element` on, in row-major order. Calls may come in any order and from
  /// several threads, as long as every element is written exactly once.
  template <class T>
  void write(std::string_view name, std::uint64_t first_element, std::span<const T> source,
             where at = where::current()) {
    static_assert(element<T>, "this type has no safetensors dtype (belay::dtype lists those that have)");
    if constexpr (element<T>) {
      const std::size_t index = index_of(name, at);
      const tensor& to = layout_.tensors[index];
      if (to.type != stored_as<T>) {
        throw usage_error("tensor " + to.name + " was declared as " + std::string(safetensors::name(to.type)) +
                              " and is written as " + std::string(safetensors::name(stored_as<T>)),
                          at);
      }
      if (first_element > to.elements()) refuse_range(to, at);
      write_range(index, first_element * sizeof(T), std::as_bytes(source), at);
    }
  }

  /// Writes raw bytes of tensor `name` from `first_byte` on, whatever its type.
  void write_bytes(std::string_view name, std::uint64_t first_byte, std::span<const std::byte> source,
                   where at = where::current()) {
    write_range(index_of(name, at), first_byte, source, at);
  }

  /// Checks that every tensor was written once, and returns when the file is on the medium under its temporary name.
  /// Ranks can then agree to commit.
  void finish(where at = where::current()) {
    if (finished_) return;
    if (!file_.is_open()) throw usage_error("this writer of " + path_ + " has been committed", at);
    for (std::size_t i = 0; i < layout_.tensors.size(); ++i) {
      const std::uint64_t bytes = written_[i].load(std::memory_order_relaxed);
      if (bytes == layout_.tensors[i].bytes()) continue;
      throw usage_error("tensor " + layout_.tensors[i].name + " has " + std::to_string(layout_.tensors[i].bytes()) +
                            " bytes, " + std::to_string(bytes) + " were written",
                        at);
    }
    file_.permit(0644, at);
    file_.sync(at);
    finished_ = true;
  }

  /// Finishes, and atomically gives the file its name; a file of that name is replaced.
  void commit(where at = where::current()) {
    finish(at);
    if (Files::rename(file_.path().c_str(), path_.c_str()) != 0) {
      throw file_error(path_, 0, "cannot be replaced: " + reason(errno), at);
    }
    file_.close();
    finished_ = false;
    sync_folder<Files>(folder_of(path_), at);
  }

 private:
  void open_temporary(where at) {
    // Skips files of a killed process with the same number.
    const std::string stem = path_ + ".tmp-" + std::to_string(::getpid()) + "-";
    for (int attempt = 0; attempt < 1000; ++attempt) {
      file_ = basic_file<Files>::create_new(stem + std::to_string(attempt), at);
      if (file_.is_open()) return;
    }
    throw file_error(stem + "0", 0, "and a thousand more temporary files are in the way", at);
  }

  void abandon() noexcept {
    if (!file_.is_open()) return;
    static_cast<void>(Files::remove(file_.path().c_str()));
    file_.close();
  }

  [[nodiscard]] std::size_t index_of(std::string_view name, where at) const {
    const tensor* found = find_tensor(layout_.tensors, by_name_, name);
    if (found == nullptr) throw usage_error("tensor " + std::string(name) + " was not declared", at);
    return static_cast<std::size_t>(found - layout_.tensors.data());
  }

  [[noreturn]] static void refuse_range(const tensor& to, where at) {
    throw usage_error(
        "this range lies outside tensor " + to.name + ", which has " + std::to_string(to.bytes()) + " bytes", at);
  }

  void write_range(std::size_t index, std::uint64_t first_byte, std::span<const std::byte> source, where at) {
    const tensor& to = layout_.tensors[index];
    if (first_byte > to.bytes() || source.size() > to.bytes() - first_byte) refuse_range(to, at);
    if (finished_ || !file_.is_open()) throw usage_error("tensor " + to.name + " is written after finish", at);
    file_.write(layout_.prefix.size() + to.begin + first_byte, source, at);
    written_[index].fetch_add(source.size(), std::memory_order_relaxed);
  }

  std::string path_;
  layout layout_;
  std::vector<std::size_t> by_name_;
  std::vector<std::atomic<std::uint64_t>> written_;  // bytes of each tensor so far
  basic_file<Files> file_;                           // the temporary
  bool finished_ = false;
};

using writer = basic_writer<posix_files>;

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
