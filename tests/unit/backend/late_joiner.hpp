// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank of `processes` that joins late: its process is held up behind the fork until others let it go on.
#pragma once

#include <pthread.h>

#include "unit/backend/forked.hpp"

/// While it lives, the process forked for `rank` waits for as many calls of `let_join` as `calls`. One at a time.
class late_joiner {
 public:
  late_joiner(int rank, int calls) : rank_(rank), calls_(calls) {
    [[maybe_unused]] static const int watched = ::pthread_atfork(
        nullptr, [] { forked_a_child(); }, [] { began_as_a_child(); });
    present = this;
  }
  late_joiner(const late_joiner&) = delete;
  late_joiner& operator=(const late_joiner&) = delete;
  ~late_joiner() { present = nullptr; }

  /// From the body of another rank.
  void let_join() const { gate_.tell(); }

 private:
  static void forked_a_child() {
    if (present != nullptr) ++present->forked_;
  }
  static void began_as_a_child() {
    if (present == nullptr || present->forked_ != present->rank_) return;
    for (int i = 0; i < present->calls_; ++i) present->gate_.wait();
  }

  static inline late_joiner* present = nullptr;  // a fork's handlers are given nothing

  int rank_;
  int calls_;
  int forked_ = 0;
  signal_pipe gate_;
};
