// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world that records what its coordinator reports, and children that join it.
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

struct test_world final : belay::host::world_events {
  belay::host::memory_segment control_block = belay::host::memory_segment::create("test-control", 4096);
  std::map<int, belay::host::exit_status> exits;
  std::map<int, belay::host::exit_status> children;
  std::map<int, belay::host::exit_message> goodbyes;
  std::map<int, std::chrono::steady_clock::time_point> exited_at;
  std::vector<int> joins, stalls;
  std::vector<std::vector<int>> renewals;
  std::vector<belay::host::memory_segment> older;
  std::function<void(const std::vector<int>&)> at_renewal;
  std::function<void()> at_goodbye;

  void on_join(int rank, pid_t) override { joins.push_back(rank); }
  void on_exit(int rank, belay::host::exit_status how) override {
    exited_at[rank] = std::chrono::steady_clock::now();
    exits[rank] = how;
  }
  void on_child_exit(int rank, belay::host::exit_status how) override { children[rank] = how; }
  void on_exit_message(int rank, const belay::host::exit_message& what) override {
    goodbyes[rank] = what;
    if (at_goodbye) at_goodbye();
  }
  void on_stall(int rank) override { stalls.push_back(rank); }
  belay::host::memory_segment& renew(const std::vector<int>& survivors) override {
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
  belay::host::bootstrap_socket socket = belay::host::bootstrap_socket::open_in(base.path());
  test_world world;
  belay::host::coordinator coordinator;
  int ranks;
  std::vector<pid_t> pids;

  explicit test_ranks(int count, belay::host::coordinator_options options = {})
      : coordinator(socket, count, world.control_block, world, options), ranks(count) {}

  [[nodiscard]] belay::host::client enter(int rank) const {
    return belay::host::client::enter(socket.path(), socket.secret(), rank, ranks, in_seconds(20));
  }

  /// One child for each rank, which joins and then runs `body(client&)`.
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
