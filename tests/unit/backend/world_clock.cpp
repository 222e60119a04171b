// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world measures what it waits for by the clock that it was given: limits of ten minutes pass when that clock says
// so, in no time of the machine, and not before.
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/device/host_stream.hpp"
#include "test_length.hpp"
#include "unit/backend/hand_clock.hpp"
#include "unit/backend/test_world.hpp"

using namespace belay::host;
using namespace std::chrono_literals;
using belay::comm_fault;

namespace {

constexpr auto limit = 600s;
constexpr auto some_slices = 200ms;  // of a wait's sleep, which are the machine's

// Whether `is_true` becomes so while a busy machine gets on.
template <class Question>
[[nodiscard]] bool soon(Question is_true) {
  for (int i = 0; i < 2000; ++i) {
    if (is_true()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

// The error of a call that ends by the world's clock. Its time is that clock's.
struct late_call {
  bool timed_out = false;
  std::vector<int> culprits;
  double waited = 0;
  std::string message;
};
template <class Call>
[[nodiscard]] late_call end_of(Call call) {
  try {
    call();
  } catch (const belay::comm_error& late) {
    const auto& what = late.about();
    return {what.fault == comm_fault::timeout, what.culprits, what.seconds_waited, what.message};
  }
  return {};
}

// As the last rank, which never comes: moves the clock to just before the others' limit, then beyond it. Whether they
// ended then, and not before.
[[nodiscard]] bool moves_beyond_limit(hand_clock& clock, belay::host::rank& self) {
  const auto& world = *self.state();
  const auto sleeps = [&](int rank) { return world.recorder(rank, belay::lane::caller).last().waiting_us != 0; };
  if (!soon([&] { return sleeps(0) && sleeps(1); })) return false;
  clock.move(limit - 1s);
  std::this_thread::sleep_for(some_slices);
  const bool too_early = world.aborted();
  clock.move(2s);
  return soon([&] { return world.aborted(); }) && !too_early;
}

}  // namespace

TEST_CASE("ranks that are threads name the one that does not come when their world's clock says so") {
  hand_clock clock;
  const auto begun = std::chrono::steady_clock::now();
  late_call ends[2];
  world(3, {.timeout = limit, .clock = &clock}).run([&](belay::host::rank& rank) {
    if (rank.number() == 2) {
      CHECK(moves_beyond_limit(clock, rank));
    } else {
      ends[rank.number()] = end_of([&] { rank.world().barrier(); });
    }
  });
  for (const late_call& each : ends) {
    CHECK(each.timed_out);
    CHECK(each.culprits == std::vector<int>{2});
    CHECK(each.message.find("did not arrive in barrier #0 within 600") != std::string::npos);
  }
  CHECK(std::max(ends[0].waited, ends[1].waited) >= 600);
  CHECK(std::chrono::steady_clock::now() - begun < 60s);
}

TEST_CASE("a shrink leaves a thread behind when the stall limit has passed by the world's clock") {
  hand_clock clock;
  const auto begun = std::chrono::steady_clock::now();
  std::atomic<bool> survives{false};
  world(2, {.timeout = limit, .stall_limit = limit, .clock = &clock}).run([&](belay::host::rank& rank) {
    if (rank.number() == 1) {
      std::this_thread::sleep_for(some_slices);  // the other is about to ask
      CHECK_FALSE(survives);
      const moving_on fast(clock);
      CHECK(soon([&] { return survives.load(); }));
    } else {
      const belay::host::rank left = rank.shrink();
      CHECK(left.size() == 1);
      survives = true;
    }
  });
  CHECK(std::chrono::steady_clock::now() - begun < 60s);
}

TEST_CASE("ranks that are processes go by a clock that lies in memory which they share" *
          doctest::skip(threads_are_sanitized)) {
  const std::shared_ptr<hand_clock> clock = shared_hand_clock();
  const auto begun = std::chrono::steady_clock::now();
  const processes ranks(3, {.timeout = limit, .clock = clock.get()});
  const auto ends = ranks.outcomes([&](belay::host::rank& rank) -> std::string {
    if (rank.number() == 2) return moves_beyond_limit(*clock, rank) ? "." : "at another time";
    const late_call end = end_of([&] { rank.world().barrier(); });
    return end.timed_out && end.culprits == std::vector<int>{2} ? "." : end.message;
  });
  for (const auto& each : ends) CHECK(each.result == ".");
  CHECK(std::chrono::steady_clock::now() - begun < 60s);
}

TEST_CASE("a survivor that asks for a new world is told who is missing when the coordinator's clock says so") {
  hand_clock clock;
  test_ranks ranks(2, {.clock = &clock});
  std::atomic<bool> answered{false};
  late_call end;
  std::thread asking([&] {
    client first = client::enter(ranks.socket.path(), ranks.socket.secret(), 0, 2, clock.now() + limit, {}, &clock);
    end = end_of([&] { static_cast<void>(first.shrink(clock.now() + limit)); });
    answered = true;
  });
  const auto serve_until = [&](auto is_true) {
    return soon([&] {
      ranks.coordinator.step(clock.now() + limit);
      return is_true();
    });
  };
  CHECK(serve_until([&] { return ranks.coordinator.about(0).shrink.has_value(); }));
  clock.move(limit - 1s);
  for (int i = 0; i < 4; ++i) ranks.coordinator.step(clock.now() + limit);
  CHECK_FALSE(answered);
  clock.move(2s);
  CHECK(serve_until([&] { return answered.load(); }));
  asking.join();
  CHECK(end.timed_out);
  CHECK(end.message.find("still waited for: rank 1") != std::string::npos);
  CHECK(end.waited >= 600);
}

TEST_CASE("who connects and says nothing is dropped, and who gets no answer gives up, by the same clock") {
  hand_clock clock;
  test_ranks ranks(2, {.hello_limit = limit, .clock = &clock});
  const auto serve = [&] { ranks.coordinator.step(clock.now() + limit); };
  std::atomic<bool> gave_up{false};
  late_call end;
  std::thread silent([&] {  // the greeting is the only answer, and it is not served until the end
    end = end_of([&] {
      static_cast<void>(
          client::enter(ranks.socket.path(), ranks.socket.secret(), 0, 2, clock.now() + limit, {}, &clock));
    });
    gave_up = true;
  });
  std::this_thread::sleep_for(some_slices);
  clock.move(limit - 1s);
  std::this_thread::sleep_for(some_slices);
  CHECK_FALSE(gave_up);
  {
    const moving_on fast(clock);
    silent.join();
  }
  CHECK(end.timed_out);
  CHECK(end.message.find("no answer of the coordinator") != std::string::npos);
  CHECK(end.waited >= 600);

  const belay::unique_fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un name = socket_address(ranks.socket.path());
  REQUIRE(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0);
  const auto is_open = [&] {
    char frame[sizeof(connection::frame)];
    ssize_t got = 1;
    while (got > 0) got = ::recv(socket.get(), frame, sizeof frame, MSG_DONTWAIT);
    return got < 0;  // 0: the other end is closed
  };
  for (int i = 0; i < 4; ++i) serve();
  clock.move(limit - 1s);
  for (int i = 0; i < 4; ++i) serve();
  CHECK(is_open());
  clock.move(2s);
  serve();
  CHECK_FALSE(is_open());
}

TEST_CASE("a launched rank waits for its launcher's token and rank 0's file by its own clock") {
  hand_clock clock;
  const auto begun = std::chrono::steady_clock::now();
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const belay::unique_fd nobody_writes(pipe[1]);
  const belay::launcher_environment second{.launcher = "torchrun", .rank = 1, .size = 2};
  const auto until = clock.now() + limit;
  const moving_on fast(clock);
  CHECK_THROWS_WITH_AS(static_cast<void>(client::token_from_descriptor(pipe[0], until, {}, &clock)),
                       doctest::Contains("no token came before the timeout"), belay::file_error);
  CHECK(clock.now() >= until);
  const auto later = clock.now() + limit;
  const late_call end = end_of([&] { static_cast<void>(bootstrap_file::find(second, later, {}, &clock)); });
  CHECK(end.timed_out);
  CHECK(end.culprits == std::vector<int>{0});
  CHECK(clock.now() >= later);
  CHECK(std::chrono::steady_clock::now() - begun < 60s);
}

TEST_CASE("a stream's work, and what a started operation comes after, are late by the clock of the rank's world") {
  const auto begun = std::chrono::steady_clock::now();
  for (const bool starts : {false, true}) {
    CAPTURE(starts);
    hand_clock clock;
    std::atomic<bool> released{false}, waits{true}, too_early{false};
    late_call end;
    std::thread mover([&] {
      std::this_thread::sleep_for(some_slices);  // the wait has begun
      clock.move(limit - 1s);
      std::this_thread::sleep_for(some_slices);
      too_early = !waits;
      const moving_on fast(clock);
      waits.wait(true);
    });
    world(1, {.timeout = limit, .clock = &clock}).run([&](belay::host::rank& self) {
      belay::host_stream compute({belay::stream_policy::queued, nullptr, starts ? nullptr : self.watch()}, 0);
      compute.run([&released] { released.wait(false); });
      end = end_of([&] {
        if (starts)
          self.world().start_barrier(belay::after(compute.record())).wait();
        else
          compute.synchronize();
      });
      waits = false;
      waits.notify_all();
      released = true;
      released.notify_all();
    });
    mover.join();
    CHECK_FALSE(too_early);
    CHECK(end.timed_out);
    CHECK(end.culprits == std::vector<int>{0});
    const char* const why = starts ? "its own stream has not reached in time" : "nothing of it has ended within 600";
    CHECK(end.message.find(why) != std::string::npos);
  }
  CHECK(std::chrono::steady_clock::now() - begun < 60s);
}
