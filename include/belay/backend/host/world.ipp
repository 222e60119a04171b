// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Starting and joining the threads of a world.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "belay/backend/host/membership/thread_membership.hpp"
#include "belay/backend/host/rank.hpp"
#include "belay/backend/host/world.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL world::world(int ranks, world_options options, where at)
    : ranks_(ranks), options_(checked_options(options, at)) {
  if (ranks < 1) throw usage_error("a world of " + std::to_string(ranks) + " ranks", at);
}

BELAY_DECL void world::run_threads(function_ref<void(rank&)> body) const {
  const auto members = std::make_shared<thread_membership>(ranks_, options_);
  std::vector<run_result> ends(static_cast<std::size_t>(ranks_));
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks_));
  try {
    for (int number = 0; number < ranks_; ++number) {
      threads.emplace_back([&, number] {
        if (options_.pin == pinning::one_core_each) pin_to_core(number);
        ends[static_cast<std::size_t>(number)] = run_rank_body(members->enter(number), members, body);
      });
    }
  } catch (...) {  // the system has no more threads
    world_status(members->first(), options_.clock)
        .abort({comm_fault::peer_failed, {static_cast<int>(threads.size())}, "its thread could not be started", ""});
    for (std::thread& thread : threads) thread.join();
    throw;
  }
  for (std::thread& thread : threads) thread.join();
  members->end();
  // The exception of the rank that aborted the world. Where an operation that a rank had started did, from its stream's
  // thread, what that rank met of it itself, if it did; or else the first rank's.
  for (const run_result& end : ends) {
    if (end.aborted_the_world) end.rethrow();
  }
  for (const run_result& end : ends) {
    try {
      end.rethrow();
    } catch (const comm_error& told) {
      const error_kind thrown = told.about().thrown;
      for (const run_result& other : ends) {
        if (thrown != error_kind::none && other.kind == thrown) other.rethrow();
      }
      throw;
    }
  }
}

BELAY_DECL void world::run_ranks(function_ref<void(belay::rank&)> body, where) const {
  run_threads([&](rank& self) {
    belay::rank of_body(self);
    body(of_body);
  });
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
