// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world that only writes down what its holder tells, and children that join it.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/client.hpp"
#include "belay/backend/host/bootstrap/coordinator.hpp"
#include "unit/backend/forked.hpp"

struct test_world {
  belay::host::memory_segment control_block = belay::host::memory_segment::create("test-control", 4096);
  std::map<int, belay::host::exit_status> endings;
  std::map<int, belay::host::exit_status> children;
  std::map<int, belay::host::exit_message> partings;
  std::map<int, std::chrono::steady_clock::time_point> ended_at;
  std::vector<int> joins, stalls;
  std::vector<std::vector<int>> renewals;
  std::vector<belay::host::memory_segment> older;
  std::function<void(const std::vector<int>&)> at_renewal;
  std::function<void()> at_goodbye;

  void joined(int rank, pid_t) { joins.push_back(rank); }
  void ended(int rank, belay::host::exit_status how) {
    ended_at[rank] = std::chrono::steady_clock::now();
    endings[rank] = how;
  }
  void child_ended(int rank, belay::host::exit_status how) { children[rank] = how; }
  void said(int rank, belay::host::exit_message what) {
    partings[rank] = std::move(what);
    if (at_goodbye) at_goodbye();
  }
  void stalled(int rank) { stalls.push_back(rank); }
  belay::host::memory_segment& renew(const std::vector<int>& survivors) {
    renewals.push_back(survivors);
    older.push_back(std::exchange(control_block, belay::host::memory_segment::create("test-control", 4096)));
    control_block.data()[0] = static_cast<std::byte>(renewals.size());
    if (at_renewal) at_renewal(survivors);
    return control_block;
  }
};

/// Shared by the test's process and its children.
struct test_ranks {
  scratch base;
  belay::host::bootstrap_socket door = belay::host::bootstrap_socket::open_in(base.path());
  test_world world;
  belay::host::coordinator<test_world> coordinator;
  int ranks;
  std::vector<pid_t> pids;

  explicit test_ranks(int count, belay::host::coordinator_options options = {})
      : coordinator(door, count, world.control_block, world, options), ranks(count) {}

  [[nodiscard]] belay::host::client enter(int rank) const {
    return belay::host::client::enter(door.path(), door.secret(), rank, ranks, in_seconds(20));
  }

  /// One child for each rank, which joins and then runs `body(guest&)`.
  template <class Body>
  void start(Body body) {
    for (int rank = 0; rank < ranks; ++rank) {
      pids.push_back(forked([&] {
        belay::host::client self = enter(rank);
        return body(self);
      }));
      coordinator.expect(rank, pids.back());
    }
  }
};

template <class T>
std::string bytes_of(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
