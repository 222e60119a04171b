// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory that several processes share. It has no name that could be left behind, no other user can open it, its
// size is sealed so that no peer can make us fault, and its pages exist before anybody touches them.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"
#include "belay/device/available_memory.hpp"

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
  [[nodiscard]] static memory_segment create(const char* name, std::size_t bytes, where at = where::current()) {
    if (bytes == 0) throw usage_error("a segment of 0 bytes", at);
    refuse_too_much(bytes, bytes, at);
    memory_segment made;
    made.file_.reset(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const std::string path = std::string("memfd:") + name;
    if (!made.file_) refuse(path, "memfd_create", errno, bytes, at);
    const int file = made.file_.get();
    if (::fchmod(file, S_IRUSR | S_IWUSR) != 0) refuse(path, "fchmod", errno, bytes, at);
    if (::ftruncate(file, static_cast<off_t>(bytes)) != 0) refuse(path, "ftruncate", errno, bytes, at);
    reserve(file, path, bytes, at);
    if (::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
      refuse(path, "F_ADD_SEALS", errno, bytes, at);
    made.map(path, bytes, at);
    return made;
  }

  /// Takes the descriptor, also when it throws: `file_error` unless it is a sealed memfd with all its pages.
  [[nodiscard]] static memory_segment attach(int number, where at = where::current()) {
    memory_segment other;
    other.file_.reset(number);
    other.map("memfd", sealed_size(number, at), at);
    return other;
  }
  /// The same, and it must have exactly so many bytes.
  [[nodiscard]] static memory_segment attach(int number, std::size_t bytes, where at = where::current()) {
    unique_fd file(number);
    const std::size_t found = sealed_size(number, at);
    if (found != bytes) {
      throw file_error("memfd", found, "a segment of " + std::to_string(bytes) + " bytes was announced", at);
    }
    return attach(file.release(), at);
  }

  /// The bytes of a descriptor that could be attached; throws `file_error` as `attach` does. Takes nothing.
  [[nodiscard]] static std::size_t sealed_size(int number, where at = where::current()) {
    const int seals = ::fcntl(number, F_GET_SEALS);
    if (seals < 0) throw file_error("memfd", 0, std::string("no memfd: ") + std::strerror(errno), at);
    constexpr int needed = F_SEAL_SHRINK | F_SEAL_GROW;
    if ((seals & needed) != needed) throw file_error("memfd", 0, "its size is not sealed", at);
    struct stat status = {};
    if (::fstat(number, &status) != 0) throw file_error("memfd", 0, std::strerror(errno), at);
    if (!S_ISREG(status.st_mode) || status.st_size <= 0) throw file_error("memfd", 0, "no memory in it", at);
    const auto bytes = static_cast<std::uint64_t>(status.st_size);
    if (static_cast<std::uint64_t>(status.st_blocks) * 512 < bytes) {
      throw file_error("memfd", bytes, "its pages are not reserved", at);
    }
    return static_cast<std::size_t>(bytes);
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_; }
  [[nodiscard]] explicit operator bool() const noexcept { return data_ != nullptr; }

  /// To be sent to another process; -1 after `forget_descriptor()`.
  [[nodiscard]] int fd() const noexcept { return file_.get(); }
  /// A child that this process forks from now on has no such memory: it faults where it touches it.
  void keep_from_children() const noexcept { ::madvise(data_, bytes_, MADV_DONTFORK); }
  /// Closes the descriptor; the mapping stays.
  void forget_descriptor() noexcept { file_.reset(); }

 private:
  // Also asked between chunks: several processes may have been told of the same free memory.
  static constexpr std::size_t chunk = std::size_t{64} << 20;

  static void refuse_too_much(std::size_t bytes, std::size_t next, where at) {
    struct rlimit most = {};
    if (::getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY && bytes > most.rlim_cur) {
      throw budget_error("shared memory (RLIMIT_FSIZE)", bytes, static_cast<std::size_t>(most.rlim_cur), at);
    }
    const std::size_t left = available_memory();
    if (next > left || bytes > static_cast<std::size_t>(std::numeric_limits<off_t>::max())) {
      throw budget_error("shared memory", bytes, left, at);
    }
  }

  // In chunks: a signal interrupts fallocate, which then begins again from where it was told to begin.
  static void reserve(int file, const std::string& path, std::size_t bytes, where at) {
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t part = std::min(chunk, bytes - done);
      if (done != 0) refuse_too_much(bytes, part, at);
      while (::fallocate(file, 0, static_cast<off_t>(done), static_cast<off_t>(part)) != 0) {
        if (errno != EINTR) refuse(path, "fallocate", errno, bytes, at);
      }
      done += part;
    }
  }

  [[noreturn]] static void refuse(const std::string& path, const char* call, int cause, std::size_t bytes, where at) {
    if (cause == ENOMEM || cause == ENOSPC || cause == EFBIG) {
      throw budget_error("shared memory", bytes, std::min(available_memory(), bytes - 1), at);
    }
    throw file_error(path, 0, std::string(call) + ": " + error_text(cause), at);
  }

  void map(const std::string& path, std::size_t bytes, where at) {
    void* const base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    if (base == MAP_FAILED) refuse(path, "mmap", errno, bytes, at);
    data_ = static_cast<std::byte*>(base);
    bytes_ = bytes;
  }
  void unmap() noexcept {
    if (data_ != nullptr) ::munmap(data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
  }

  unique_fd file_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
