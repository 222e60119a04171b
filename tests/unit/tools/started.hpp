// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// belay-run, started by a test.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "belay/core/process.hpp"
#include "unit/backend/forked.hpp"

struct outcome {
  int code = -1;  // 1000 + signal
  std::string out, error;
};

[[nodiscard]] inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// belay-run in a directory of its own, so that what it leaves is seen.
class launched {
 public:
  explicit launched(
      const std::vector<std::string>& arguments, const std::string& input = "/dev/null",
      const std::vector<int>& ignored = {}, const std::function<void()>& last = [] {}) {
    pid_ = forked([&] {
      for (const int number : ignored) ::signal(number, SIG_IGN);
      ::setenv("XDG_RUNTIME_DIR", (base_.path() + "/run").c_str(), 1);
      ::mkdir((base_.path() + "/run").c_str(), 0700);
      ::dup2(::open(input.c_str(), O_RDONLY | O_CLOEXEC), 0);
      constexpr int fresh = O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC;
      ::dup2(::open((base_.path() + "/out").c_str(), fresh, 0600), 1);
      ::dup2(::open((base_.path() + "/error").c_str(), fresh, 0600), 2);
      ::alarm(0);
      std::vector<char*> words{const_cast<char*>(BELAY_RUN)};
      for (const std::string& one : arguments) words.push_back(const_cast<char*>(one.c_str()));
      words.push_back(nullptr);
      last();
      ::execv(BELAY_RUN, words.data());
      return 98;
    });
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] std::string file(const char* name) const { return base_.path() + "/" + name; }
  [[nodiscard]] int sockets() const { return entries_of(file("run")); }

  // Until a file holds so many lines: a rank wrote them.
  [[nodiscard]] std::vector<std::string> wait_for_lines(const char* name, std::size_t count) const {
    std::vector<std::string> lines;
    const auto end = in_seconds(20);
    while (lines.size() < count && std::chrono::steady_clock::now() < end) {
      lines.clear();
      std::istringstream text(contents(file(name)));
      for (std::string line; std::getline(text, line) && !text.eof();) lines.push_back(line);
    }
    return lines;
  }

  [[nodiscard]] outcome wait() {
    outcome result;
    result.code = reaped(pid_);
    result.out = contents(file("out"));
    result.error = contents(file("error"));
    return result;
  }

 private:
  scratch base_;
  pid_t pid_;
};

[[nodiscard]] inline outcome run(const std::vector<std::string>& arguments, const std::string& input = "/dev/null") {
  launched one(arguments, input);
  outcome result = one.wait();
  CHECK(one.sockets() == 0);
  return result;
}

[[nodiscard]] inline bool is_stopped(pid_t pid) {
  return belay::state_of_process(pid) == belay::process_state::stopped;
}

// The state follows the signal, but not at once.
[[nodiscard]] inline bool is_stopped_soon(pid_t pid, bool stopped) {
  const auto end = in_seconds(20);
  while (is_stopped(pid) != stopped && std::chrono::steady_clock::now() < end) {
  }
  return is_stopped(pid) == stopped;
}

[[nodiscard]] inline std::string this_program() { return std::filesystem::read_symlink("/proc/self/exe"); }
