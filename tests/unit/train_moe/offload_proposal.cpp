// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a refused plan proposes: lower tiers fill in one order, with no more than must leave the device, and nothing
// goes where it does not fit.
#include "train_moe/offload_proposal.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "belay/core/error.hpp"

using belay::tier;
using train_moe::offload_text;
using train_moe::options;

namespace {

// A run whose rows follow from its tiers; state in a file has a ring in tier host.
belay::rehearsal_result rehearsed(const options& run) {
  std::vector<belay::rank_plan> ranks;
  for (const std::size_t shard : {90U, 100U}) {
    belay::rank_plan rank;
    rank.add(tier::device, "windows", 50);
    rank.add(run.parameter_tier, "parameters", shard);
    rank.add(run.gradient_tier, "gradients", shard);
    rank.add(run.optimizer_tier, "optimizer state", 2 * shard);
    if (run.optimizer_tier == tier::file) rank.add(tier::host, "optimizer ring", 8);
    rank.add(run.activation_tier, "activations", 70);
    ranks.push_back(rank);
  }
  belay::rehearsal_result out;
  out.plan = belay::plan(ranks);
  return out;
}

options limited(std::size_t device, std::size_t pinned, std::size_t host, std::size_t file) {
  options run;
  run.zero = belay::zero_stage::parameters;
  run.budget = {{device, pinned, host, file}};
  return run;
}
train_moe::offload_proposal proposal(const options& run) {
  return train_moe::propose_offload(run, rehearsed(run).plan, rehearsed);
}

}  // namespace

TEST_CASE("lower tiers fill in the order pinned, host, file, and no more leaves the device than must") {
  struct row {
    std::size_t device, pinned, host, file;
    const char* wanted;
  };
  for (const row& each :
       {row{520, 0, 0, 0, ""}, row{519, 200, 0, 0, "optimizer:pinned"}, row{320, 1000, 1000, 1000, "optimizer:pinned"},
        row{319, 1000, 1000, 1000, "optimizer:pinned,gradients:pinned"},
        row{319, 299, 1000, 1000, "optimizer:pinned,gradients:host"},
        row{319, 199, 1000, 1000, "optimizer:host,gradients:pinned"},
        row{319, 99, 299, 1000, "optimizer:host,gradients:file"},
        row{120, 99, 107, 400, "optimizer:file,parameters:file,gradients:file"},
        row{120, 99, 108, 400, "optimizer:file,parameters:file,gradients:host"},
        row{50, 300, 100, 70, "optimizer:pinned,parameters:host,gradients:pinned,activations:file"}}) {
    const options run = limited(each.device, each.pinned, each.host, each.file);
    const auto found = proposal(run);
    INFO(each.wanted << ": " << found.text());
    CHECK(!found.missing);
    CHECK(offload_text(found.proposed) == each.wanted);
    CHECK(!rehearsed(found.proposed).plan.shortage(run.budget));
    CHECK(found.proposed.tier_folder.empty() == (std::string(each.wanted).find(":file") == std::string::npos));
  }
}

TEST_CASE("a proposal says its flags and bytes, and what is left where no --offload fits") {
  CHECK(proposal(limited(520, 0, 0, 0)).text() == "no --offload is needed: the plan fits");
  CHECK(proposal(limited(319, 299, 1000, 0)).text() ==
        "--offload optimizer:pinned,gradients:host: fits, rehearsed; a rank needs at most 220 bytes (220 B) of tier "
        "device, 200 bytes (200 B) of tier pinned, 100 bytes (100 B) of tier host");
  options in_folder = limited(319, 0, 8, 1000);
  in_folder.optimizer_tier = tier::host;
  in_folder.tier_folder = "";
  CHECK(proposal(in_folder).text().find("optimizer:file") !=
        std::string::npos);  // and not the host, which it was given
  const auto none = proposal(limited(49, 1000, 0, 0));
  CHECK(none.missing);
  CHECK(none.text() ==
        "no --offload that was tried fits: with "
        "optimizer:pinned,parameters:pinned,gradients:pinned,activations:pinned, in the order "
        "pinned, host, file, tier device is still short by 1 bytes (1 B)");
  CHECK(proposal(limited(100, 0, 0, 0)).text() ==
        "no --offload that was tried fits: tier device is short by 420 bytes (420 B)");
}

TEST_CASE("what a stage does not divide stays, and so does what a rehearsal refuses") {
  options whole = limited(100, 1000, 1000, 1000);
  whole.zero = belay::zero_stage::optimizer_state;
  CHECK(offload_text(proposal(whole).proposed) == "optimizer:pinned,activations:pinned");
  const options run = limited(519, 0, 0, 1000);
  const auto without_files = [](const options& changed) {
    if (!changed.tier_folder.empty()) throw belay::input_error("a folder that has no room");
    return rehearsed(changed);
  };
  CHECK(train_moe::propose_offload(run, rehearsed(run).plan, without_files).missing);
}
