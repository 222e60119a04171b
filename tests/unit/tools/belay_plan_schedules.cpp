// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Schedules as belay-plan lays them out: bubbles and what is kept beside the closed forms of the tables, stages that
// lie in a V, and the choice among all.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "belay/parallel/schedule.hpp"
#include "tools/belay_plan/choice.hpp"
#include "tools/belay_plan/config.hpp"
#include "tools/belay_plan/search.hpp"
#include "unit/tools/program_output.hpp"

using namespace belay_plan;
using namespace program_output;
namespace schedule = belay::schedule;

namespace {

architecture model(const std::string& name) { return config_reader::read(config_of(name)); }

setting pipeline_of(int ranks, count micro_batches, const std::string& name) {
  setting run;
  run.mesh = {.pipeline = ranks};
  run.global_batch = micro_batches;
  run.sequence = 4096;
  run.schedule.name = name;
  return run;
}

std::vector<std::string> all_names() { return schedule::named_schedule::names(3); }

using nlohmann::json;

const std::string program = std::string("'") + BELAY_PLAN + "' ";

json planned(const std::string& arguments) {
  CAPTURE(arguments);
  const outcome told = run("(" + program + arguments + " --json 2>/dev/null)");
  CAPTURE(told.out);
  REQUIRE(told.code == 0);
  return json::parse(told.out);
}

const auto one_each = [](std::size_t) { return 1.0; };

}  // namespace

TEST_CASE("a rank keeps as many chunks as its table has between a forward and a whole backward or weight gradient") {
  for (const std::string& name : all_names()) {
    CAPTURE(name);
    const laid_schedule laid({name, nullptr}, 4, 8);
    double most = 0;
    for (std::size_t rank = 0; rank < 4; ++rank) most = std::max(most, laid.most(rank, one_each));
    CHECK(most ==
          static_cast<double>(schedule::cost_of(schedule::named_table(name, 4, 8), schedule::equal_costs{}).peak));
  }
  CHECK(laid_schedule({"1f1b", nullptr}, 4, 16).most(3, one_each) == 1);
  CHECK(laid_schedule({"zb-h1", nullptr}, 4, 16).most(3, one_each) == 4);
  // Stages that differ: GPipe keeps all of both chunks, and what is counted is bytes at one time.
  const auto bytes = [](std::size_t stage) { return stage == 7 ? 100.0 : 1.0; };
  CHECK(laid_schedule({"bfs:2", nullptr}, 4, 8).most(3, bytes) == 8 * 101);
  CHECK(laid_schedule({"zb-v", nullptr}, 4, 8).most(0, bytes) < 4 * 101);
}

TEST_CASE("bubbles are the closed forms of the schedules, also of more micro-batches than are laid out") {
  const auto idle = [](const std::string& name, std::size_t ranks, std::size_t micro_batches) {
    return laid_schedule({name, nullptr}, ranks, micro_batches).idle(schedule::equal_costs{});
  };
  for (const std::size_t size : {std::size_t{16}, std::size_t{4096}, std::size_t{200'000}}) {
    CAPTURE(size);
    const std::size_t p = 8;
    const auto m = static_cast<double>(size);
    const auto rate = [](double bubble, double busy) {
      return doctest::Approx(bubble / (busy + bubble)).epsilon(1e-9);
    };
    CHECK(idle("gpipe", p, size) == rate(21, 3 * m));
    CHECK(idle("1f1b", p, size) == rate(21, 3 * m));
    CHECK(idle("interleaved:2", p, size) == rate(21, 6 * m));
    CHECK(idle("bfs:2", p, size) == rate(21, 6 * m));
    CHECK(idle("zb-h1", p, size) == rate(7, 3 * m));
    CHECK(idle("zb-v", p, size) == rate(7, 6 * m));
    CHECK(idle("v-half", p, size) == rate(17, 6 * m));
    CHECK(idle("v-min", p, size) == rate(27, 6 * m));
    CHECK(idle("dualpipe-v", p, size) == rate(7, 6 * m));
  }
  // All of them are kept.
  CHECK(laid_schedule({"gpipe", nullptr}, 8, 200'000).most(0, one_each) == 200'000);
  CHECK(laid_schedule({"bfs:2", nullptr}, 8, 200'000).most(0, one_each) == 400'000);
  CHECK(laid_schedule({"zb-v", nullptr}, 8, 200'000).most(0, one_each) == 16);
}

TEST_CASE("wherever stages lie all parameters are on some rank, and a table that is used twice once on a rank") {
  for (const std::string& name : all_names()) {
    CAPTURE(name);
    for (const char* const of : {"gpt2", "llama-3-8b"}) {
      const architecture here = model(of);
      const setting run = pipeline_of(4, 8, name);
      count all = 0;
      for (count rank = 0; rank < 4; ++rank)
        for (const parameter_block& each : blocks_of(here, run, rank)) all += each.all();
      const bool twice = here.head == head_kind::tied && run.laid().rank_of(run.laid().stages() - 1) != 0;
      CHECK(all == parameters_of(here) + (twice ? here.vocabulary * here.hidden : 0));
    }
  }
  // In a V the first rank has the embedding and the head.
  const auto has = [&](const std::string& name, count rank) {
    return memory_of(model("llama-3-8b"), pipeline_of(4, 8, name), rank).at(belay::tier::device, purpose::parameters);
  };
  CHECK(has("zb-v", 0) > has("zb-v", 3));
  CHECK(has("zb-v", 1) == has("zb-v", 2));
  CHECK(has("interleaved:2", 3) == has("1f1b", 3));
}

TEST_CASE("a schedule that cannot be had is refused with values that work") {
  const architecture tiny = model("tiny");
  const auto refuses = [&](int ranks, count micro_batches, const std::string& name, const char* words) {
    setting run = pipeline_of(ranks, micro_batches, name);
    run.sequence = 64;
    CHECK_THROWS_WITH_AS(check(run, tiny), doctest::Contains(words), belay::input_error);
  };
  refuses(
      4, 8, "zb-v",
      "--schedule zb-v cuts the model into 8 stages on pp=4, and it has 4 layers, one for each stage at least: take "
      "pp=2 or less, or a schedule of one chunk a rank: 1f1b, zb-h1");
  refuses(2, 8, "interleaved:3", "take pp=1 or less, or a schedule of at most 2 chunks a rank");
  refuses(1, 8, "bfs:5", "one for each stage at least: take a schedule of at most 4 chunks a rank");
  refuses(2, 3, "dualpipe-v", "needs 4 micro-batches on pp=2, and a pipeline has 3: take --global-batch 4");
  refuses(4, 8, "interleaved:1:2", "groups of 2 micro-batches on 4 ranks");
  setting run = pipeline_of(2, 8, "");
  run.sequence = 64;
  run.schedule = {"mine.csv", std::make_shared<const schedule::dynamic_table>(schedule::named_table("zb-v", 2, 6))};
  CHECK_THROWS_WITH_AS(check(run, tiny), doctest::Contains("take --mesh pp=2 and --global-batch 6"),
                       belay::input_error);
  run.global_batch = 6;
  CHECK_NOTHROW(check(run, tiny));
  for (const char* const name : {"zb-v", "interleaved:2", "v-min"}) {
    setting works = pipeline_of(2, 8, name);
    works.sequence = 64;
    CHECK_NOTHROW(check(works, tiny));
  }
}

TEST_CASE("what is chosen is the shortest of all, and with a budget the shortest that fits it") {
  const architecture llama = model("llama-3-8b");
  const time_constants with;
  const auto seconds = [&](const setting& run) {
    const time_model times(llama, run, with);
    return times.pipeline(times.of_stages());
  };
  const auto most = [&](const setting& run) { return fullest(llama, run)[0]; };
  setting rich = pipeline_of(4, 16, "auto");
  const chosen_schedule found = choose_schedule(llama, rich, with, {});
  CHECK(rich.schedule.name == found.name);
  CHECK(found.seconds == seconds(rich));
  CHECK(found.refused.size() >= 15);
  for (const std::string& name : all_names()) CHECK(found.seconds <= 1.0001 * seconds(pipeline_of(4, 16, name)));
  for (const auto& each : found.refused) {
    CAPTURE(each.name);
    if (each.reason.find("saves ") == 0) continue;  // pairs that pay for nothing have no time
    CHECK(each.seconds >= 0.9999 * found.seconds);  // each of them fits
  }
  belay::budget limit;
  double before = found.seconds;
  for (const count gigabytes : {count{70}, count{64}, count{60}}) {
    limit[belay::tier::device] = gigabytes << 30U;
    setting poor = pipeline_of(4, 16, "auto");
    const chosen_schedule fits = choose_schedule(llama, poor, with, limit);
    CAPTURE(fits.name);
    CHECK(most(poor) <= limit[belay::tier::device]);
    CHECK(fits.seconds >= before);
    before = fits.seconds;
    setting again = pipeline_of(4, 16, "auto");
    CHECK(choose_schedule(llama, again, with, limit).name == fits.name);
    for (const auto& each : fits.refused)
      if (each.seconds == 0 && each.reason.find("saves ") != 0)
        CHECK((each.reason.find("keeps ") == 0 || each.reason.find("one micro-batch ") == 0));
  }
  limit[belay::tier::device] = 10U << 30U;
  setting none = pipeline_of(4, 16, "auto");
  CHECK_THROWS_WITH_AS(static_cast<void>(choose_schedule(llama, none, with, limit)), doctest::Contains("fits: "),
                       belay::usage_error);
  setting greedy = pipeline_of(4, 16, "greedy");
  CHECK_THROWS_WITH_AS(static_cast<void>(choose_schedule(llama, greedy, with, limit)),
                       doctest::Contains("one micro-batch does not fit"), belay::usage_error);
  setting alone = pipeline_of(1, 16, "auto");
  CHECK(choose_schedule(llama, alone, with, {}).name == "1f1b");
  // Four layers on four ranks: nothing with two chunks.
  setting few = pipeline_of(4, 16, "auto");
  few.sequence = 64;
  for (const auto& each : choose_schedule(model("tiny"), few, with, {}).refused)
    if (each.name == "zb-v") CHECK(each.reason == "has more stages than the network has layers");
}

TEST_CASE("a search tries the schedules that it is given, and split backwards shorten what they shorten") {
  setting base;
  base.sequence = 4096;
  base.global_batch = 64;
  belay::budget limit;
  limit[belay::tier::device] = std::size_t{80} << 30U;
  const architecture llama = model("llama-3-8b");
  plan_search plain(llama, base, 16, limit, {}, belay::tier::host, {"1f1b"});
  plan_search all(llama, base, 16, limit, {}, belay::tier::host, {"1f1b", "zb-v", "interleaved:2"});
  const auto best_of = [](const std::vector<candidate>& found, int ranks) {
    for (const candidate& each : found)
      if (each.run.mesh.pipeline == ranks) return each;
    FAIL("none");
    return found.front();
  };
  const std::vector<candidate> before = plain.run(), after = all.run();
  for (const int ranks : {4, 8, 16}) CHECK(best_of(after, ranks).seconds < best_of(before, ranks).seconds);
  for (std::size_t i = 0; i < after.size(); i += after.size() / 50 + 1) {
    CHECK_NOTHROW(check(after[i].run, llama));
    CHECK(time_model(llama, after[i].run, {}).of_step().all() == after[i].seconds);
  }
}

TEST_CASE("a schedule is chosen, by name or from a file, and what was refused is said") {
  const std::string at = "llama-3-8b --mesh pp=4 --global-batch 16 ";
  const json chosen = planned(at + "--schedule auto");
  const json& choice = chosen["schedule_choice"];
  CHECK(choice["name"] == chosen["run"]["schedule"]);
  CHECK(choice["seconds"] == chosen["step"]["pipeline_seconds"]);
  CHECK(choice["stages"].size() == 4 * chosen["run"]["chunks"].get<std::size_t>());
  CHECK(choice["refused"].size() >= 16);
  CHECK(planned(at + "--schedule " + choice["name"].get<std::string>())["classes"] == chosen["classes"]);
  CHECK(planned(at)["schedule_choice"] == nullptr);
  const json greedy = planned(at + "--schedule greedy");
  CHECK(greedy["run"]["schedule"] == "greedy");
  CHECK(greedy["schedule_choice"]["refused"].empty());
  CHECK(greedy["schedule_choice"]["seconds"] >= choice["seconds"]);
  for (const json& each : choice["refused"])
    if (each["name"] == "greedy")
      CHECK(greedy["schedule_choice"]["seconds"] == doctest::Approx(each["seconds"].get<double>()).epsilon(0.001));
  // One that fits is longer; one that does not says where it has no room.
  const json poor = planned(at + "--schedule auto --budget device=62GiB");
  CHECK(poor["fits"] == true);
  CHECK(poor["schedule_choice"]["seconds"] >= choice["seconds"]);
  std::size_t too_large = 0;
  for (const json& each : poor["schedule_choice"]["refused"]) {
    const std::string reason = each["reason"];
    if (each["seconds"] != nullptr || reason.find("saves ") == 0) continue;
    ++too_large;
    CHECK(reason.find(" bytes on rank ") != std::string::npos);
  }
  CHECK(too_large >= 3);
  const outcome told = run(program + at + "--schedule auto --budget device=62GiB");
  const std::size_t tried = poor["schedule_choice"]["refused"].size() + 1;
  CHECK(has(told, "schedule: " + poor["schedule_choice"]["name"].get<std::string>() + " of " + std::to_string(tried) +
                      ", the shortest that fits: "));
  CHECK(has(told, "costs of a stage: F "));
  CHECK(has(told, "  not gpipe"));
  const outcome none = run(program + at + "--schedule auto --budget device=1GiB");
  CHECK(none.code == 3);
  CHECK(has(none, "belay-plan: --schedule auto: no schedule of 4 ranks and 16 micro-batches fits: "));
  // A table of one's own.
  const scratch folder;
  std::ofstream(folder / "mine.csv") << belay::schedule::to_csv(belay::schedule::named_table("zb-v", 4, 16));
  const json mine = planned(at + "--schedule " + (folder / "mine.csv")), named = planned(at + "--schedule zb-v");
  CHECK(mine["classes"] == named["classes"]);
  CHECK(mine["step"] == named["step"]);
  CHECK(named["classes"][0]["stages"] == json{0, 7});
  CHECK(has(run(program + at + "--schedule zb-v"), "stages 0, 7"));
  const outcome other = run(program + "llama-3-8b --mesh pp=2 --schedule " + (folder / "mine.csv"));
  CHECK(other.code == 2);
  CHECK(has(other, "is a table of 4 ranks and 16 micro-batches, and the pipeline has 2 and 32: take --mesh pp=4"));
  std::ofstream(folder / "lost.csv") << "belay-schedule 1,lost,1,2\nF0,B0,F1\n";
  CHECK(has(run(program + "gpt2 --global-batch 2 --schedule " + (folder / "lost.csv")), "this schedule cannot run: "));
  std::ofstream(folder / "bad.csv") << "belay-schedule 1,bad,1,2\nF0,X0\n";
  CHECK(has(run(program + "gpt2 --global-batch 2 --schedule " + (folder / "bad.csv")), "row 2"));
}

TEST_CASE("a picture has every class, the budget and the schedule") {
  const scratch folder;
  const std::string path = folder / "plan.svg";
  CHECK(run(program + "tiny --mesh pp=4 --alpha 1ns --beta 100TB/s --budget device=1GiB --svg " + path).code == 0);
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  const std::string svg = text.str();
  CHECK(svg.starts_with("<svg xmlns"));
  for (const char* const part :
       {"stage 3", "budget 1.0 GiB", "optimizer state", "tier host", "bubble 8.6 %", "backward of micro-batch 31"})
    CHECK_MESSAGE(svg.find(part) != std::string::npos, part);
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(svg.find(">31</text>") != std::string::npos);  // all micro-batches have their numbers
  CHECK(svg.find(">512.0 MiB</text>") != std::string::npos);
  // Of sixteen classes each bar has its bytes and its first ranks.
  CHECK(run(program + "small --mesh pp=8,ep=2 --micro-batch-size 2 --sequence 8 --svg " + path).code == 0);
  std::ifstream again(path);
  std::size_t bars = 0, totals = 0, ranks = 0;
  for (std::string line; std::getline(again, line);) {
    bars += line.find(">stage ") != std::string::npos && line.find("middle") != std::string::npos ? 1U : 0U;
    totals += line.find("font-size=\"11\"") != std::string::npos && line.find("iB<") != std::string::npos ? 1U : 0U;
    ranks += line.find("\"soft\" font-size=\"10\"") != std::string::npos ? 1U : 0U;
  }
  CHECK(bars == 32);  // of two tiers
  CHECK(totals == bars);
  CHECK(ranks == bars);
  // Halves of backwards have colours of their own, light and dark.
  CHECK(run(program + "llama-3-8b --mesh pp=4 --global-batch 8 --schedule zb-v --svg " + path).code == 0);
  std::ifstream split(path);
  std::stringstream of_halves;
  of_halves << split.rdbuf();
  for (const char* const part :
       {"class=\"input\"", "class=\"weight\"", ">weight gradient</text>", ">stages 0, 7</text>",
        "prefers-color-scheme:dark", "stage 7, input gradient of micro-batch 7"})
    CHECK_MESSAGE(of_halves.str().find(part) != std::string::npos, part);
  const outcome refused = run(program + "tiny --svg " + (folder / "no/plan.svg"));
  CHECK(refused.code == 1);  // as all output that cannot be written
  CHECK(has(refused, "no/plan.svg"));
}
