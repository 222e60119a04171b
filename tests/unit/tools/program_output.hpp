// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A built program as a shell starts it, what it has printed, and a folder for its files.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>

namespace program_output {

struct outcome {
  int code = -1;
  std::string out;  // both streams
};

inline outcome run(const std::string& command) {
  outcome result;
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) result.out.append(buffer, count);
  const int status = ::pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return result;
}

inline bool has(const outcome& result, const std::string& part) { return result.out.find(part) != std::string::npos; }

class scratch {
 public:
  scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "belay-tool-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~scratch() { std::filesystem::remove_all(path_); }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace program_output
