// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The signals that ask a run to stop.
#pragma once

#include <sys/mman.h>

#include <csignal>
#include <new>

#include "belay/core/error.hpp"
#include "belay/train/stop_request.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL stop_request::stop_request(where at) {
  void* const page = ::mmap(nullptr, sizeof(request_state), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw file_error("mmap", 0, "no page for a request to stop", at);
  state_ = new (page) request_state;
  request_state* none = nullptr;
  if (!requested_stop_.compare_exchange_strong(none, state_)) {
    ::munmap(page, sizeof(request_state));
    throw usage_error("there is a stop_request in this process already", at);
  }
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGTERM, &action, &before_);
}

BELAY_DECL stop_request::~stop_request() {
  end();
  ::munmap(state_, sizeof(request_state));
}

BELAY_DECL void stop_request::end() const noexcept {
  request_state* own = state_;
  if (requested_stop_.compare_exchange_strong(own, nullptr)) ::sigaction(SIGTERM, &before_, nullptr);
}

}  // namespace belay::inline BELAY_ABI
