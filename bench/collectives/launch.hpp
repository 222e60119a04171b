// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What ranks tell the process that started them, be they threads of it, its children, or processes of mpirun.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>

#include "belay/backend/host/processes.hpp"
#include "belay/backend/host/world.hpp"

namespace bench {

/// Results of the ranks, for the process that started them: shared with children.
struct outcome {
  std::size_t wrong = 0;
};

class shared_outcome {
 public:
  shared_outcome()
      : memory_(::mmap(nullptr, sizeof(outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    new (memory_) outcome;
  }
  shared_outcome(const shared_outcome&) = delete;
  shared_outcome& operator=(const shared_outcome&) = delete;
  ~shared_outcome() { ::munmap(memory_, sizeof(outcome)); }
  [[nodiscard]] outcome& get() const { return *static_cast<outcome*>(memory_); }

 private:
  void* memory_;
};

}  // namespace bench
