// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A fuzz target is a function that must return for any bytes. Refusing them is an exception that is expected; anything
// else ends the process, which libFuzzer and the replay report with the input.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzz {

[[nodiscard]] inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Ends the process unless `holds`.
inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: this does not hold: %s\n", what);
  std::abort();
}

/// Runs `body`, which may refuse its input with one of `Errors` whose text a terminal can show. Returns whether it came
/// to its end.
template <class... Errors, class Body>
bool refuses_with(Body&& body) {
  try {
    body();
    return true;
  } catch (const belay::error& refusal) {
    expect((... || (dynamic_cast<const Errors*>(&refusal) != nullptr)), refusal.what());
    expect(belay::printable(refusal.what()) == refusal.what(), "a refusal is one printable line");
    expect(std::string_view(refusal.what()).size() < 100'000, "a refusal is short");
    return false;
  }
}

/// A regular file in memory that holds what it was last given.
class memory_file {
 public:
  explicit memory_file(const char* name) : file_(::memfd_create(name, MFD_CLOEXEC)) {
    expect(file_ >= 0, "memfd_create");
    path_ = "/proc/self/fd/" + std::to_string(file_);
  }
  memory_file(const memory_file&) = delete;
  memory_file& operator=(const memory_file&) = delete;
  ~memory_file() { ::close(file_); }

  void hold(std::string_view bytes) const {
    expect(::ftruncate(file_, 0) == 0, "ftruncate");
    expect(::pwrite(file_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "pwrite");
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  int file_;
  std::string path_;
};

}  // namespace fuzz
