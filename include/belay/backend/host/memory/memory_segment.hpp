// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory that several processes share. It has no name that could be left behind, no other user can open it, its size is
// sealed so that no peer can make this process fault, and its pages are reserved when it is made.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A mapped, sealed memfd. Moved, never copied; the mapping stays where it is when the object moves.
class memory_segment {
 public:
  memory_segment() noexcept = default;
  memory_segment(memory_segment&& other) noexcept
      : file_(std::move(other.file_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  memory_segment& operator=(memory_segment&& other) noexcept {
    if (this != &other) {
      unmap();
      file_ = std::move(other.file_);
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  ~memory_segment() { unmap(); }

  /// New memory, zeroed, every page reserved. `name` is shown in /proc/PID/maps. Throws `budget_error` with the
  /// bytes where there is too little memory, `usage_error` for 0 bytes, `file_error` if the kernel refuses else.
  [[nodiscard]] static memory_segment create(const char* name, std::size_t bytes, where at = where::current());

  /// Takes the descriptor, also when it throws: `file_error` unless it is a sealed memfd with all its pages.
  [[nodiscard]] static memory_segment attach(int number, where at = where::current());
  /// Takes the descriptor, also when it throws: `file_error` unless it is a sealed memfd with all its pages and exactly
  /// `bytes`.
  [[nodiscard]] static memory_segment attach(int number, std::size_t bytes, where at = where::current());

  /// The bytes of a descriptor that could be attached; throws `file_error` as `attach` does. Takes nothing.
  [[nodiscard]] static std::size_t sealed_size(int number, where at = where::current());

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
  [[nodiscard]] explicit operator bool() const noexcept { return data_ != nullptr; }

  /// To be sent to another process; -1 after `forget_descriptor()`.
  [[nodiscard]] int fd() const noexcept { return file_.get(); }
  /// A child that this process forks from now on has no such memory: it faults where it touches it.
  void keep_from_children() const noexcept;
  /// Closes the descriptor; the mapping stays.
  void forget_descriptor() noexcept { file_.reset(); }

 private:
  // Also asked between chunks: several processes may have been told of the same free memory.
  static constexpr std::size_t chunk = std::size_t{64} << 20;

  static void refuse_too_much(std::size_t bytes, std::size_t next, where at);

  // In chunks: a signal interrupts fallocate, which then begins again from where it was told to begin.
  static void reserve(int file, const std::string& path, std::size_t bytes, where at);

  [[noreturn]] static void refuse(const std::string& path, const char* call, int cause, std::size_t bytes, where at);

  void map(const std::string& path, std::size_t bytes, where at);
  void unmap() noexcept;

  unique_fd file_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/memory/memory_segment.ipp"  // IWYU pragma: export
#endif
