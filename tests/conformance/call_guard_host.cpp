// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <new>

#include "conformance/call_guard.hpp"
#include "conformance/host_processes.hpp"
#include "conformance/host_threads.hpp"

namespace guarded {

// A word that a rank gives its peers beside the world.
class word {
 public:
  explicit word(int) {
    const int shared = MAP_SHARED | MAP_ANONYMOUS;
    void* const page = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, shared, -1, 0);
    said_ = ::new (page) std::atomic<int>(0);
  }
  word(const word&) = delete;
  word& operator=(const word&) = delete;
  ~word() { ::munmap(static_cast<void*>(said_), sizeof *said_); }
  void tell() const { said_->store(1); }
  void wait() const {
    while (said_->load() == 0) ::sched_yield();
  }

 private:
  std::atomic<int>* said_;
};

struct host_threads : conformance::host_threads {
  using word = guarded::word;
  static constexpr bool child_may_exit = true;
};
struct host_processes : conformance::host_processes {
  using word = guarded::word;
  static constexpr bool child_may_exit = true;
};

}  // namespace guarded

TEST_CASE_TEMPLATE_INVOKE(conf_two_threads, guarded::host_threads, guarded::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_beside_a_call, guarded::host_threads, guarded::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_child, guarded::host_threads, guarded::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_child_ends, guarded::host_threads, guarded::host_processes);
TEST_CASE_TEMPLATE_INVOKE(conf_after, guarded::host_threads);
