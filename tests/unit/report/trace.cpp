// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/report/trace.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/device.hpp"
#include "belay/step.hpp"
#include "unit/report/support/trace_format.hpp"

namespace {

using belay::span_kind;
using belay::span_lane;

struct file_of_test {
  std::string path = "/tmp/belay_trace_" + std::to_string(::getpid());
  ~file_of_test() { ::unlink(path.c_str()); }
};

struct room_of_rank {
  explicit room_of_rank(std::size_t spans) : memory(spans), log(memory) {}
  std::vector<belay::traced_span> memory;
  belay::span_log log;
  std::vector<char> text = std::vector<char>(belay::trace_merge::room_bytes);
};

struct twice {
  struct residue {
    belay::view<float, 1> out;
  };
  residue forward(auto& frame, const belay::view<const float, 1>& x) {
    auto out = belay::keep<float>(frame, x.shape());
    frame.each(x.size(), belay::kernel::multiple<float>{2, x.data(), out.data()});
    return {out};
  }
  void backward(auto& frame, residue&&, const belay::view<const float, 1>& dout, belay::view<float, 1> dx) {
    frame.each(dout.size(), belay::kernel::multiple<float>{2, dout.data(), dx.data()});
  }
  [[nodiscard]] static const char* name() noexcept { return "twice"; }
  [[nodiscard]] static std::size_t index() noexcept { return 7; }
};

// A step with what streams, groups and layers do, of which the second is traced.
void run_steps(belay::host::rank& rank, belay::stream_policy policy, room_of_rank& room) {
  const auto& group = rank.world();
  belay::tier_meters meters;
  belay::engine<belay::host_pages, belay::host_kit<>> engine(belay::host_pages(1 << 16), meters[belay::tier::device],
                                                             {policy, nullptr, {}}, rank.number());
  std::vector<float> x(64, 1), there(64), sum(8);
  twice layer;
  for (const bool traced : {false, true}) {
    engine.trace_into(traced ? &room.log : nullptr, &meters);
    group.trace_into(traced ? &room.log : nullptr);
    belay::traced_span* const whole =
        traced ? room.log.add({.name = "step", .number = 2, .kind = span_kind::step}) : nullptr;
    const belay::span_timer timed(whole);
    belay::step step{engine};
    auto out = belay::forward(step, layer, belay::view<const float, 1>(x.data(), {x.size()}));
    const int next = (rank.number() + 1) % group.size(), before = (rank.number() + group.size() - 1) % group.size();
    for (int tag = 0; tag < 2; ++tag) {
      const belay::p2p both[] = {belay::p2p::send(next, std::span<const float>(x), tag),
                                 belay::p2p::receive(before, std::span<float>(there), tag)};
      group.exchange(both);
    }
    group.start_all_reduce(std::span<float>(sum), belay::sum).then(engine.compute());
    engine.copies().copy(there.data(), x.data(), x.size() * sizeof(float));
    engine.copies().let_wait(engine.compute(), engine.copies().record());
    auto dx = std::move(out).backward(belay::view<const float, 1>(x.data(), {x.size()}));
    engine.synchronize();
    static_cast<void>(dx);
    std::move(step).cut_off();
  }
  engine.trace_into(nullptr);
  group.trace_into(nullptr);
  group.start_local(belay::operation::barrier, [] {}).wait();
}

}  // namespace

TEST_CASE("what layers, copies and ranks do in a traced step is a Chrome trace with a lane a stream") {
  const file_of_test out;
  for (const auto policy : {belay::stream_policy::immediate, belay::stream_policy::queued}) {
    belay::trace_file file(out.path);
    belay::host::world{3}.run([&](auto& rank) {
      room_of_rank room(200);
      belay::trace_merge merge(rank.world(), "part " + std::to_string(rank.number()), room.text);
      run_steps(rank, policy, room);
      CHECK(room.log.forgotten() == 0);
      merge.write(rank.world(), room.log, rank.number() == 0 ? &file : nullptr);
    });
    CHECK(!file.take_problem());
    const report_test::read_trace got = report_test::checked_trace(out.path, 3);
    CHECK(got.flows == 6);  // two of each rank
    CHECK(got.file["otherData"]["unfinished"] == 0);
    CHECK(got.file["otherData"]["first_step"] == 2);
    CHECK(got.file["otherData"]["last_step"] == 2);
    CHECK(got.file["otherData"]["clock_uncertainty_us"][2] == 0);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CHECK(got.of(rank, "name", "step 2").size() == 1);
      const auto layers = got.of(rank, "cat", "layer");
      REQUIRE(layers.size() == 2);  // of the traced step alone
      CHECK(layers[0]["name"] == "twice forward");
      CHECK(layers[1]["name"] == "twice backward");
      CHECK(layers[1]["args"]["layer"] == 7);
      CHECK(layers[1]["tid"] == static_cast<int>(span_lane::compute));
      CHECK(std::string(layers[0]["args"]["at"]).starts_with("trace.cpp:"));
      CHECK(got.of(rank, "name", "exchange").size() == 2);
      REQUIRE(got.of(rank, "name", "all_reduce").size() == 1);
      CHECK(got.of(rank, "name", "all_reduce")[0]["tid"] == static_cast<int>(span_lane::communication));
      REQUIRE(got.of(rank, "name", "copy").size() == 1);
      CHECK(got.of(rank, "name", "copy")[0]["args"]["bytes"] == 256);
      CHECK(std::string(got.of(rank, "name", "copy")[0]["args"]["at"]).starts_with("trace.cpp:"));
    }
    CHECK(got.counters >= 3);  // what layers keep
  }
}

TEST_CASE("a full log forgets what comes later and says so, and then no flow has one end") {
  const file_of_test out;
  belay::trace_file file(out.path);
  belay::host::world{2}.run([&](auto& rank) {
    room_of_rank room(rank.number() == 0 ? 7 : 200);
    belay::trace_merge merge(rank.world(), "", room.text);
    run_steps(rank, belay::stream_policy::immediate, room);
    CHECK((room.log.forgotten() > 0) == (rank.number() == 0));
    merge.write(rank.world(), room.log, rank.number() == 0 ? &file : nullptr);
  });
  const report_test::read_trace got = report_test::checked_trace(out.path, 2);
  CHECK(got.flows == 0);
  CHECK(got.file["otherData"]["forgotten"] > 0);
  CHECK(got.of(0, "cat", "layer").size() == 1);
  CHECK(got.of(1, "cat", "layer").size() == 2);
}

TEST_CASE("a span that is not over is left out and counted, names are quoted, and long logs go in pieces") {
  const file_of_test out;
  belay::trace_file file(out.path);
  belay::host::world{2}.run([&](auto& rank) {
    room_of_rank room(3000);
    belay::trace_merge merge(rank.world(), "", room.text);
    if (rank.number() == 1) {
      static_cast<void>(room.log.add({.name = "never over", .begin = 5}));
      for (std::int64_t i = 0; i < 2500; ++i)
        static_cast<void>(room.log.add({.name = "a \"b\"", .begin = 10 + 2 * i, .end = 11 + 2 * i}));
    }
    merge.write(rank.world(), room.log, rank.number() == 0 ? &file : nullptr);
  });
  const report_test::read_trace got = report_test::checked_trace(out.path, 2);
  CHECK(got.file["otherData"]["unfinished"] == 1);
  CHECK(got.spans == 2500);
  CHECK(got.file["otherData"]["first_step"].is_null());  // no step was traced
  CHECK(got.of(1, "name", "a \"b\"").size() == 2500);
}

TEST_CASE("clocks of two machines are brought together to within what is said") {
  // Between two readings the difference changes evenly.
  const belay::clock_reading before{1000, 500, 10}, after{2000, 700, 20};
  CHECK(belay::between(before, after, 1000) == 1500);
  CHECK(belay::between(before, after, 1500) == 2100);
  CHECK(belay::between(before, after, 2000) == 2700);
  CHECK(belay::between(before, after, 3000) == 3700);
  struct late_clock {
    std::int64_t late = 0;
    [[nodiscard]] std::int64_t now() const noexcept { return belay::monotonic_clock::now() - late; }
    static void sleep(std::int64_t) noexcept {}
  };
  belay::host::world{3}.run([&](auto& rank) {
    const std::int64_t late = std::array<std::int64_t, 3>{0, 7'000'000'000, 0}[static_cast<std::size_t>(rank.number())];
    belay::rank_clock<late_clock> clock(rank.world(), rank.number() == 1 ? 1 : 0, late_clock{late});
    clock.read_again(rank.world());
    const std::int64_t own = late_clock{late}.now();
    const std::int64_t wrong = clock.of_rank_0(own) - (own + late);
    CHECK(std::abs(wrong) <= clock.uncertainty());
    CHECK((clock.uncertainty() > 0) == (rank.number() == 1));
  });
}

TEST_CASE("a file that cannot be written is refused when it is opened, and one that fails later says so once") {
  CHECK_THROWS_AS(belay::trace_file("/nowhere/trace.json"), belay::file_error);
  belay::trace_file full("/dev/full");
  full.write("{");
  full.write("}");
  CHECK(full.take_problem().has_value());
  CHECK(!full.take_problem().has_value());
}

TEST_CASE("the trace of a run that fails has what its ranks did until then, and what was under way") {
  const file_of_test out;
  const auto read = [&] {
    std::ifstream in(out.path);
    return nlohmann::json::parse(in);
  };
  {
    belay::trace_file failed(out.path);
    failed.fail("rank 1 is gone");
    CHECK(read()["otherData"]["failed"] == "rank 1 is gone");
    CHECK(read()["traceEvents"].empty());
  }
  belay::trace_file file(out.path);
  belay::host::world{2}.run([&](auto& rank) {
    room_of_rank room(200);
    const belay::trace_merge merge(rank.world(), "part " + std::to_string(rank.number()), room.text);
    run_steps(rank, belay::stream_policy::queued, room);
    belay::traced_span* const hangs = room.log.add({.name = "all_reduce", .kind = span_kind::communication});
    hangs->begin_at(belay::span_log::now());
    static_cast<void>(room.log.add({.name = "never begun"}));
    merge.fail("the first cause", static_cast<std::size_t>(rank.number()), room.log, file);
  });
  const report_test::read_trace got = report_test::checked_trace(out.path, 2);
  CHECK(got.file["otherData"]["failed"] == "the first cause");
  CHECK(got.of(0, "cat", "layer").size() == 2);
  CHECK(got.of(1, "cat", "layer").size() == 2);
  CHECK(got.flows == 0);
  CHECK(got.under_way == 2);
  // A whole trace stays what it is.
  belay::trace_file whole(out.path);
  whole.write("{\"traceEvents\":[");
  whole.finish(belay::trace_file::end);
  whole.fail("later");
  CHECK(read()["traceEvents"].empty());
  CHECK(!read().contains("otherData"));
}
