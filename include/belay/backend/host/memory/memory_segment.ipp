// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// System calls around a sealed memfd.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/error.hpp"
#include "belay/device/available_memory.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

[[gnu::cold]] BELAY_DECL memory_segment memory_segment::create(const char* name, std::size_t bytes, where at) {
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

[[gnu::cold]] BELAY_DECL memory_segment memory_segment::attach(int number, where at) {
  memory_segment other;
  other.file_.reset(number);
  other.map("memfd", sealed_size(number, at), at);
  return other;
}

[[gnu::cold]] BELAY_DECL memory_segment memory_segment::attach(int number, std::size_t bytes, where at) {
  unique_fd file(number);
  const std::size_t found = sealed_size(number, at);
  if (found != bytes) {
    throw file_error("memfd", found, "a segment of " + std::to_string(bytes) + " bytes was announced", at);
  }
  return attach(file.release(), at);
}

[[gnu::cold]] BELAY_DECL std::size_t memory_segment::sealed_size(int number, where at) {
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

[[gnu::cold]] BELAY_DECL void memory_segment::keep_from_children() const noexcept {
  ::madvise(data_, bytes_, MADV_DONTFORK);
}

[[gnu::cold]] BELAY_DECL void memory_segment::refuse_too_much(std::size_t bytes, std::size_t next, where at) {
  struct rlimit most = {};
  if (::getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY && bytes > most.rlim_cur) {
    throw budget_error("shared memory (RLIMIT_FSIZE)", bytes, static_cast<std::size_t>(most.rlim_cur), at);
  }
  const std::size_t left = available_memory();
  if (next > left || bytes > static_cast<std::size_t>(largest_value<off_t>)) {
    throw budget_error("shared memory", bytes, left, at);
  }
}

[[gnu::cold]] BELAY_DECL void memory_segment::reserve(int file, const std::string& path, std::size_t bytes, where at) {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t part = lesser_of(chunk, bytes - done);
    if (done != 0) refuse_too_much(bytes, part, at);
    while (::fallocate(file, 0, static_cast<off_t>(done), static_cast<off_t>(part)) != 0) {
      if (errno != EINTR) refuse(path, "fallocate", errno, bytes, at);
    }
    done += part;
  }
}

[[gnu::cold]] BELAY_DECL void memory_segment::refuse(const std::string& path, const char* call, int cause,
                                                     std::size_t bytes, where at) {
  if (cause == ENOMEM || cause == ENOSPC || cause == EFBIG) {
    throw budget_error("shared memory", bytes, lesser_of(available_memory(), bytes - 1), at);
  }
  throw file_error(path, 0, std::string(call) + ": " + error_text(cause), at);
}

[[gnu::cold]] BELAY_DECL void memory_segment::map(const std::string& path, std::size_t bytes, where at) {
  void* const base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (base == MAP_FAILED) refuse(path, "mmap", errno, bytes, at);
  data_ = static_cast<std::byte*>(base);
  bytes_ = bytes;
}

[[gnu::cold]] BELAY_DECL void memory_segment::unmap() noexcept {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
