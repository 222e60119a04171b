// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A folder of a test's own, which ends with it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace train_bench {

struct directory {
  std::string path = [] {
    char name[] = "/tmp/belay_train_XXXXXX";
    return std::string(::mkdtemp(name));
  }();
  directory() = default;
  directory(const directory&) = delete;
  directory& operator=(const directory&) = delete;
  ~directory() { std::filesystem::remove_all(path); }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path + "/" + name; }
};

}  // namespace train_bench
