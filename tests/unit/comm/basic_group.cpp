// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A group over a backend of one rank that writes down what it is asked to run.
#include "belay/comm/basic_group.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "belay/comm/collective.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/core/error.hpp"

namespace {

using belay::lane;
using belay::operation;
using duration = std::chrono::steady_clock::duration;

struct fake_world {
  [[nodiscard]] bool aborted() const {
    const std::lock_guard lock(mutex);
    return !cause.culprits.empty();
  }
  [[noreturn]] void raise(const belay::call_site& call) const {
    const std::lock_guard lock(mutex);
    belay::raise_cause(cause, call, 0);
  }
  void abort(const belay::abort_cause& why) {
    const std::lock_guard lock(mutex);
    cause = why;
  }
  [[nodiscard]] belay::spin_policy before_sleep(lane) const { return {}; }
  [[nodiscard]] std::chrono::steady_clock::time_point now() const { return std::chrono::steady_clock::now(); }
  [[nodiscard]] std::shared_ptr<const belay::own_process> home() const { return nullptr; }

  mutable std::mutex mutex;
  belay::abort_cause cause;
};

struct ran {
  operation what;
  lane which;
  duration limit;
  std::thread::id thread;
};

struct fake_state {
  std::vector<int> ranks{7};
  std::vector<ran> log;
  belay::collective_order started;

  std::vector<operation> told;
  [[nodiscard]] belay::collective_order& collectives() { return started; }
  [[nodiscard]] int size() const { return 1; }
  [[nodiscard]] std::span<const int> members() const { return ranks; }
};

struct fake_backend {
  using world_type = fake_world;
  using group_state = fake_state;
  static void run(fake_state& state, lane which, duration limit, const belay::op_call& call) {
    state.log.push_back({call.what(), which, limit, std::this_thread::get_id()});
    if (call.what() == operation::broadcast) throw std::runtime_error("no such root");
  }
  static void tell_first_start(fake_state& state, operation what, const belay::where&) { state.told.push_back(what); }
};

struct fake_group : belay::basic_group<fake_group, fake_backend> {
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = true;
  using basic_group::basic_group;
};
static_assert(belay::communicator<fake_group> && belay::can_exchange<fake_group>);
static_assert(belay::sums_in_rank_order<fake_group> && belay::has_varying_counts<fake_group>);
// Formats of 8 bits are moved, never reduced.
static_assert(belay::can_all_gather<fake_group, belay::fp8_e4m3> &&
              !belay::can_all_reduce<fake_group, belay::fp8_e4m3>);
static_assert(belay::can_all_reduce<fake_group, belay::bf16> && !belay::can_all_reduce<fake_group, bool>);

struct one_rank {
  std::shared_ptr<fake_world> world = std::make_shared<fake_world>();
  std::shared_ptr<fake_state> state = std::make_shared<fake_state>();
  std::shared_ptr<fake_group::stream_type> stream = std::make_shared<fake_group::stream_type>(world, 3);
  fake_group group{state, 0, std::chrono::seconds(5), stream};
};

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const belay::comm_error& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("each operation runs in its lane, with the group's limit") {
  one_rank made;
  const fake_group hurried = made.group.within(std::chrono::milliseconds(250));
  std::vector<float> in(4), out(4);
  const std::size_t counts[] = {4};
  const belay::p2p none[] = {belay::p2p::send(0, std::span<const float>(in))};
  const auto call_all = [&](const fake_group& group) {
    group.barrier();
    group.all_reduce(std::span(out), belay::sum);
    group.all_reduce(std::span<const float>(in), std::span(out), belay::sum);
    group.reduce_scatter(std::span<const float>(in), std::span(out), belay::sum);
    group.reduce_scatter_v(std::span(out), counts, belay::sum);
    group.all_gather(std::span<const float>(in), std::span(out));
    group.all_gather_v(std::span(out), counts);
    group.all_to_all(std::span<const float>(in), std::span(out));
    group.all_to_all_v(std::span<const float>(in), counts, std::span(out), counts);
    group.reduce(std::span(out), belay::sum, 0);
    group.gather(std::span<const float>(in), std::span(out), 0);
    group.scatter(std::span<const float>(in), std::span(out), 0);
    group.exchange(none);
    group.send(0, std::span(in));
    group.receive(0, std::span(out));
  };
  const auto start_all = [&](const fake_group& group) {
    group.start_barrier().wait();
    group.start_all_reduce(std::span(out), belay::sum).wait();
    group.start_reduce_scatter(std::span<const float>(in), std::span(out), belay::sum).wait();
    group.start_reduce_scatter_v(std::span(out), counts, belay::sum).wait();
    group.start_all_gather(std::span<const float>(in), std::span(out)).wait();
    group.start_all_gather_v(std::span(out), counts).wait();
    group.start_all_to_all(std::span<const float>(in), std::span(out)).wait();
    group.start_all_to_all_v(std::span<const float>(in), counts, std::span(out), counts).wait();
    group.start_reduce(std::span(out), belay::sum, 0).wait();
    group.start_gather(std::span<const float>(in), std::span(out), 0).wait();
    group.start_scatter(std::span<const float>(in), std::span(out), 0).wait();
    group.start_exchange(none).wait();
  };
  call_all(made.group);
  REQUIRE(made.state->log.size() == 15);
  start_all(hurried);
  REQUIRE(made.state->log.size() == 27);
  const std::vector<operation> blocking = {
      operation::barrier,          operation::all_reduce, operation::all_reduce,   operation::reduce_scatter,
      operation::reduce_scatter_v, operation::all_gather, operation::all_gather_v, operation::all_to_all,
      operation::all_to_all_v,     operation::reduce,     operation::gather,       operation::scatter,
      operation::exchange,         operation::exchange,   operation::exchange};
  for (std::size_t i = 0; i < 15; ++i) {
    CHECK(made.state->log[i].what == blocking[i]);
    CHECK(made.state->log[i].which == lane::caller);
    CHECK(made.state->log[i].limit == std::chrono::seconds(5));
    CHECK(made.state->log[i].thread == std::this_thread::get_id());
  }
  const std::vector<operation> started = {
      operation::barrier,    operation::all_reduce,   operation::reduce_scatter, operation::reduce_scatter_v,
      operation::all_gather, operation::all_gather_v, operation::all_to_all,     operation::all_to_all_v,
      operation::reduce,     operation::gather,       operation::scatter,        operation::exchange};
  for (std::size_t i = 0; i < 12; ++i) {
    const ran& each = made.state->log[15 + i];
    CHECK(each.what == started[i]);
    CHECK(each.which == lane::stream);
    CHECK(each.limit == std::chrono::milliseconds(250));
    CHECK(each.thread != std::this_thread::get_id());
  }
  CHECK(hurried.members().front() == 7);

  // From the first start on collectives meet in the stream's lane, on the calling thread where nothing is in flight;
  // transfers of a pair, of which other ranks know nothing, do not.
  call_all(made.group);
  REQUIRE(made.state->log.size() == 42);
  for (std::size_t i = 0; i < 15; ++i) {
    const ran& each = made.state->log[27 + i];
    CHECK(each.which == (each.what == operation::exchange ? lane::caller : lane::stream));
    CHECK(each.thread == std::this_thread::get_id());
  }
}

TEST_CASE("an exchange that was started changes nothing for collectives") {
  one_rank made;
  std::vector<float> data(4);
  const belay::p2p none[] = {belay::p2p::send(0, std::span<const float>(data))};
  made.group.start_exchange(none).wait();
  made.group.barrier();
  CHECK(made.state->log.back().which == lane::caller);
  CHECK(made.state->told.empty());
  made.group.start_barrier().wait();
  made.group.barrier();
  CHECK(made.state->log.back().which == lane::stream);
  made.group.start_all_reduce(std::span(data), belay::sum).wait();
  REQUIRE(made.state->told.size() == 1);  // the first alone
  CHECK(made.state->told.front() == operation::barrier);
}

TEST_CASE("an operation that throws on the stream stops the world; later ones do not run and fail with its cause") {
  one_rank made;
  std::vector<float> data(4);
  std::vector<belay::pending> started(2);
  started[0] = made.group.start_barrier();
  started[1] = made.group.start_broadcast(std::span(data), 0);
  std::move(started[0]).wait();
  const std::string cause = "rank 3 started an operation that throws: no such root";
  CHECK(error_of([&] { std::move(started[1]).wait(); }).find(cause) != std::string::npos);
  CHECK(error_of([&] { made.group.start_barrier().wait(); }).find(cause) != std::string::npos);
  made.stream->finish();
  CHECK(made.state->log.size() == 2);
}

TEST_CASE("what makes no sense is an error of the start, which then has queued nothing") {
  one_rank made;
  std::vector<float> data(4);
  const std::size_t three[] = {3};
  CHECK_THROWS_AS(made.group.start_all_gather_v(std::span(data), three).wait(), belay::usage_error);
  CHECK_THROWS_AS(made.group.start_reduce_scatter_v(std::span(data), three, belay::sum).wait(), belay::usage_error);
  const std::span<const float> in = data;
  CHECK_THROWS_AS(made.group.start_all_to_all_v(in, three, std::span(data), three).wait(), belay::usage_error);
  CHECK_THROWS_AS(made.group.start_all_gather(in.first(3), std::span(data)).wait(), belay::usage_error);
  CHECK_THROWS_AS(made.group.start_broadcast(std::span(data), 1).wait(), belay::usage_error);
  made.group.start_barrier().wait();
  CHECK(made.state->log.size() == 1);
}

TEST_CASE("a group of one copies, in the order of the rank's other operations, and asks no backend") {
  one_rank made;
  const fake_group alone(std::chrono::seconds(5), made.stream);
  CHECK(alone.size() == 1);
  CHECK(alone.members().front() == 3);
  const std::vector<float> in{1, 2, 3};
  const std::size_t counts[] = {3};
  const std::span<const float> from = in;
  const auto copied = [&](auto call) {
    std::vector<float> out(3);
    call(std::span(out));
    return out == in;
  };
  CHECK(copied([&](auto out) { alone.all_reduce(from, out, belay::average); }));
  CHECK(copied([&](auto out) { alone.reduce_scatter(from, out, belay::sum); }));
  CHECK(copied([&](auto out) { alone.all_gather(from, out); }));
  CHECK(copied([&](auto out) { alone.all_to_all(from, out); }));
  CHECK(copied([&](auto out) { alone.all_to_all_v(from, counts, out, counts); }));
  CHECK(copied([&](auto out) { alone.reduce(from, out, belay::sum, 0); }));
  CHECK(copied([&](auto out) { alone.gather(from, out, 0); }));
  CHECK(copied([&](auto out) { alone.scatter(from, out, 0); }));
  CHECK(copied([&](auto out) { alone.start_all_gather(from, out).wait(); }));
  CHECK(copied([&](auto out) {
    const belay::p2p both[] = {belay::p2p::receive(0, out.first(1)), belay::p2p::send(0, from.first(1)),
                               belay::p2p::send(0, from.last(2), 7), belay::p2p::receive(0, out.last(2), 7)};
    alone.start_exchange(both).wait();
  }));
  std::vector<float> data = in;
  alone.all_reduce(std::span(data), belay::sum);
  alone.broadcast(std::span(data), 0);
  alone.all_gather_v(std::span(data), counts);
  alone.start_reduce_scatter_v(std::span(data), counts, belay::average).wait();
  alone.barrier();
  alone.start_barrier().wait();
  CHECK(data == in);
  CHECK(made.state->log.empty());

  CHECK_THROWS_AS(alone.broadcast(std::span(data), 1), belay::usage_error);
  CHECK_THROWS_AS(alone.all_gather(from, std::span(data).first(2)), belay::usage_error);
  const std::size_t two[] = {2};
  CHECK_THROWS_AS(alone.all_to_all_v(from, counts, std::span(data).first(2), two), belay::usage_error);
}

TEST_CASE("a rank that sends itself what it does not expect fails the world, as with a peer") {
  const std::vector<float> in(3);
  std::vector<float> out(3);
  const auto error_with = [&](std::vector<belay::p2p> transfers) {
    one_rank made;
    const fake_group alone(std::chrono::seconds(5), made.stream);
    const std::string error = error_of([&] { alone.exchange(transfers); });
    CHECK(error_of([&] { alone.barrier(); }).find("rank 3") != std::string::npos);  // from then on
    CHECK(error_of([&] { alone.start_barrier().wait(); }).find("rank 3") != std::string::npos);
    return error;
  };
  const auto send = belay::p2p::send(0, std::span(in));
  const auto receive = belay::p2p::receive(0, std::span(out));
  CHECK(error_with({send, belay::p2p::receive(0, std::span(out), 1)}).find("with tag 1") != std::string::npos);
  CHECK(error_with({send, belay::p2p::receive(0, std::span(out).first(2))}).find("8 bytes") != std::string::npos);
  CHECK(error_with({send, receive, send}).find("more often than it receives") != std::string::npos);
  CHECK(error_with({receive}).find("more often than it sends") != std::string::npos);
}
