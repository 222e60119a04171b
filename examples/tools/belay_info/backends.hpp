// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What this Belay is built with, and what of it this machine lets run, tried out.
#pragma once

#include <dlfcn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/core/error.hpp"
#include "belay/device/tier_file/transfer_ring.hpp"
#include "tools/belay_info/facts.hpp"

namespace belay_info {

struct usability {
  std::string name;
  bool compiled = true;
  std::string why_not = {};  // empty: the machine lets it run
  std::optional<std::string> version = std::nullopt;
};

[[nodiscard]] inline fact usability_fact(const usability& of) {
  const std::optional<std::string> why_not = of.why_not.empty() ? std::nullopt : std::optional(of.why_not);
  std::string text = of.compiled ? "" : "not compiled; ";
  text += why_not ? "not usable: " + belay::printable(*why_not) : "usable";
  if (of.version) text += " (" + belay::printable(*of.version) + ")";
  return {of.name,
          json_object({{"compiled", json_of(of.compiled)},
                       {"usable", json_of(!why_not)},
                       {"why_not", json_of(why_not)},
                       {"version", json_of(of.version)}}),
          text};
}

[[nodiscard]] inline usability threads() {
  usability out{"threads"};
  try {
    std::thread([] {}).join();
  } catch (const std::exception& problem) {
    out.why_not = std::string("no thread starts: ") + problem.what();
  }
  return out;
}

/// The means of ranks that are processes: shared memory without a name, a child, its pidfd.
[[nodiscard]] inline usability processes() {
  usability out{"processes"};
  try {
    const auto shared = belay::host::memory_segment::create("belay-info", 4096);
    const pid_t child = ::fork();
    if (child < 0) {
      out.why_not = "fork: " + belay::error_text(errno);
      return out;
    }
    if (child == 0) {
      *shared.data() = std::byte{1};
      ::_exit(0);
    }
    try {
      if (!belay::host::watched_process::watch(child)) out.why_not = "pidfd_open: " + belay::error_text(errno);
    } catch (const std::exception& problem) {
      out.why_not = problem.what();
    }
    static_cast<void>(::waitpid(child, nullptr, 0));
    if (*shared.data() != std::byte{1}) out.why_not = "a child does not reach the memory that it shares";
  } catch (const std::exception& problem) {
    out.why_not = problem.what();
  }
  return out;
}

/// A library of the machine, for as long as the program runs: what such a library has started cannot be taken back.
class loaded_library {
 public:
  explicit loaded_library(const std::vector<const char*>& names) {
    for (const char* const name : names) {
      if (handle_ != nullptr) break;
      handle_ = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
      if (handle_ != nullptr || !why_not_.empty()) continue;
      const char* const said = ::dlerror();
      why_not_ = said == nullptr ? name : said;
    }
    if (handle_ != nullptr) why_not_.clear();
  }
  [[nodiscard]] const std::string& why_not() const noexcept { return why_not_; }

  /// Null where it has none of that name.
  template <class F>
  [[nodiscard]] F* function(const char* name) const noexcept {
    return handle_ == nullptr ? nullptr : reinterpret_cast<F*>(::dlsym(handle_, name));
  }

 private:
  void* handle_ = nullptr;
  std::string why_not_;
};

[[nodiscard]] inline bool on_path(const std::string& program) {
  const char* const path = std::getenv("PATH");
  const std::string folders = path == nullptr ? "" : path;
  for (std::size_t begin = 0; begin <= folders.size();) {
    const std::size_t end = std::min(folders.find(':', begin), folders.size());
    if (::access((folders.substr(begin, end - begin) + "/" + program).c_str(), X_OK) == 0) return true;
    begin = end + 1;
  }
  return false;
}

[[nodiscard]] inline usability mpi() {
  usability out{"mpi"};
#if !defined(BELAY_INFO_MPI)
  out.compiled = false;
#endif
  const loaded_library library({"libmpi.so.40", "libmpi.so.12", "libmpi.so"});  // Open MPI, MPICH
  out.why_not = library.why_not();
  if (auto* const version = library.function<int(char*, int*)>("MPI_Get_library_version")) {
    std::array<char, 16384> text{};
    int length = 0;
    if (version(text.data(), &length) == 0) {
      const std::string_view all(text.data());
      out.version = std::string(all.substr(0, all.find_first_of(",\n")));
    }
  }
  if (out.why_not.empty() && !on_path("mpirun")) out.why_not = "there is no mpirun in PATH";
  return out;
}

/// Whether the kernel makes a ring; liburing is asked where Belay is built with it.
[[nodiscard]] inline usability io_uring() {
  usability out{"io_uring"};
#if defined(BELAY_HAS_LIBURING) && BELAY_HAS_LIBURING == 1
  belay::system_transfer_ring ring;
  out.why_not = ring.open(8);
#else
  out.compiled = false;
  alignas(8) std::array<unsigned char, 120> parameters{};  // io_uring_params
  const long ring = ::syscall(SYS_io_uring_setup, 1, parameters.data());
  if (ring < 0)
    out.why_not = "io_uring_setup: " + belay::error_text(errno);
  else
    ::close(static_cast<int>(ring));
#endif
  return out;
}

/// Compiled where this build has the target belay::cuda; usable where the driver sees a device.
[[nodiscard]] inline usability cuda() {
  usability out{"cuda"};
#if !defined(BELAY_INFO_CUDA)
  out.compiled = false;
#endif
  const loaded_library driver({"libcuda.so.1"});
  out.why_not = driver.why_not();
  if (!out.why_not.empty()) return out;
  auto* const start = driver.function<int(unsigned)>("cuInit");
  auto* const version = driver.function<int(int*)>("cuDriverGetVersion");
  auto* const count = driver.function<int(int*)>("cuDeviceGetCount");
  int number = 0, devices = 0;
  if (version != nullptr && version(&number) == 0)
    out.version = "CUDA " + std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  const int refused = start == nullptr ? -1 : start(0);
  if (refused != 0)
    out.why_not = "cuInit returns " + std::to_string(refused);
  else if (count == nullptr || count(&devices) != 0 || devices < 1)
    out.why_not = "the driver sees no device";
  else if (out.version)
    *out.version += ", devices: " + std::to_string(devices);
  return out;
}

/// Usable where the library is there, and a device, without which it runs nothing.
[[nodiscard]] inline usability nccl() {
  usability out{"nccl"};
#if !defined(BELAY_INFO_NCCL)
  out.compiled = false;
#endif
  const loaded_library library({"libnccl.so.2"});
  out.why_not = library.why_not();
  auto* const version = library.function<int(int*)>("ncclGetVersion");
  int number = 0;
  if (version != nullptr && version(&number) == 0)
    out.version = std::to_string(number / 10000) + "." + std::to_string(number % 10000 / 100) + "." +
                  std::to_string(number % 100);
  if (const std::string lacks = cuda().why_not; out.why_not.empty() && !lacks.empty())
    out.why_not = "no device to run on: " + lacks;
  return out;
}

/// Children come before libraries, which may start threads.
[[nodiscard]] inline section backends() {
  section out{"backends", {}};
  for (const auto look : {processes, threads, io_uring, mpi, cuda, nccl}) out.facts.push_back(usability_fact(look()));
  return out;
}

}  // namespace belay_info
