// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A file descriptor with one owner.
#pragma once

#include <unistd.h>

#include <utility>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Owns a file descriptor, or none; closes it. Moved, never copied.
class descriptor {
 public:
  descriptor() noexcept = default;
  explicit descriptor(int number) noexcept : number_(number) {}
  descriptor(descriptor&& other) noexcept : number_(other.release()) {}
  descriptor& operator=(descriptor&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~descriptor() { reset(); }

  /// -1: none.
  [[nodiscard]] int get() const noexcept { return number_; }
  [[nodiscard]] explicit operator bool() const noexcept { return number_ >= 0; }
  [[nodiscard]] int release() noexcept { return std::exchange(number_, -1); }
  void reset(int number = -1) noexcept {
    if (number_ >= 0) ::close(number_);  // Linux frees the number even when close() reports an error
    number_ = number;
  }

 private:
  int number_ = -1;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
