// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/offload_proposal.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>

#include "belay/core/error.hpp"
#include "belay/train/plan_table.hpp"

namespace train_moe {

namespace {

using belay::tier;

// What can be moved, by what a step pays for it: state is used once a step, activations in every micro-batch.
struct movable {
  tier options::*where_it_is;
  const char* purpose;  // its row in the plan
};
constexpr movable all_movable[] = {{&options::optimizer_tier, "optimizer state"},
                                   {&options::gradient_tier, "gradients"},
                                   {&options::parameter_tier, "parameters"},
                                   {&options::activation_tier, "activations"}};

using by_tier = std::array<std::size_t, belay::tier_count>;

// Of the rank that needs most.
by_tier needed_by(const belay::plan& planned) {
  by_tier out{};
  for (const belay::rank_plan& rank : planned.ranks())
    for (std::size_t t = 0; t < out.size(); ++t) out[t] = std::max(out[t], rank.peak_bytes(static_cast<tier>(t)));
  return out;
}
by_tier excess_of(const belay::plan& planned, const belay::budget& limit) {
  by_tier out = needed_by(planned);
  for (std::size_t t = 0; t < out.size(); ++t) out[t] -= std::min(out[t], limit[static_cast<tier>(t)]);
  return out;
}
std::size_t row_of(const belay::plan& planned, tier of, const char* purpose) {
  std::size_t most = 0;
  for (const belay::rank_plan& rank : planned.ranks()) {
    std::size_t bytes = 0;
    for (const belay::plan_item& item : rank.items())
      if (item.where_it_is == of && item.purpose == purpose) bytes += item.bytes;
    most = std::max(most, bytes);
  }
  return most;
}

options moved_to(tier to, tier options::*what, const options& run) {
  options out = run;
  out.*what = to;
  if (to == tier::file && out.tier_folder.empty()) {
    std::error_code none;  // then there is no folder, and the rehearsal says so
    out.tier_folder = std::filesystem::temp_directory_path(none).string();
  }
  if (offload_text(out).find(":file") == std::string::npos && out.phase_tier != tier::file) out.tier_folder.clear();
  return out;
}

// All that can be in files, but for activations or with them, where that fits.
void propose_files(offload_proposal& out, const std::function<belay::rehearsal_result(const options&)>& rehearse) {
  options changed = out.given;
  for (const movable& what : all_movable) {
    options moved = moved_to(tier::file, what.where_it_is, changed);
    try {
      check(moved);
      belay::plan found = rehearse(moved).plan;
      changed = std::move(moved);
      if (found.shortage(changed.budget)) continue;
      out.missing.reset();
      out.planned = std::move(found);
      out.proposed = std::move(changed);
      return;
    } catch (const belay::error&) {  // nothing that could be offloaded
    }
  }
}

}  // namespace

std::string exact_bytes(std::size_t bytes) {
  return std::to_string(bytes) + " bytes (" + belay::bytes_text(bytes) + ")";
}

offload_proposal propose_offload(const options& given, const belay::plan& planned,
                                 const std::function<belay::rehearsal_result(const options& changed)>& rehearse) {
  offload_proposal out{given, given, planned, planned.shortage(given.budget)};
  for (const movable& what : all_movable) {
    if (!out.missing) break;
    const by_tier needed = needed_by(out.planned), excess = excess_of(out.planned, given.budget);
    const tier from = out.proposed.*what.where_it_is;
    const auto source = static_cast<std::size_t>(from);
    const std::size_t bytes = row_of(out.planned, from, what.purpose);
    if (excess[source] == 0 || bytes == 0) continue;
    for (const tier to : tiers_to_fill) {
      const std::size_t limit = given.budget[to], used = needed[static_cast<std::size_t>(to)];
      if (to == from || limit < used || limit - used < bytes) continue;
      options changed = moved_to(to, what.where_it_is, out.proposed);
      try {
        check(changed);
        belay::plan found = rehearse(changed).plan;
        const by_tier now = excess_of(found, given.budget);
        const bool nowhere_more =
            std::equal(now.begin(), now.end(), excess.begin(), [](std::size_t a, std::size_t b) { return a <= b; });
        if (!nowhere_more || now[source] == excess[source]) continue;
        out.missing = found.shortage(given.budget);
        out.planned = std::move(found);
        out.proposed = std::move(changed);
        break;
      } catch (const belay::error&) {  // nothing that could be offloaded there: to the next tier
      }
    }
  }
  if (out.missing) propose_files(out, rehearse);
  return out;
}

std::string offload_proposal::text() const {
  const std::string tiers = offload_text(proposed);
  if (missing) {
    const std::string with = tiers.empty() ? "" : "with " + tiers + ", in the order pinned, host, file, ";
    return "no --offload that was tried fits: " + with + "tier " + belay::name(missing->where_it_is) + " is " +
           (tiers.empty() ? "" : "still ") + "short by " + exact_bytes(missing->needed_bytes - missing->budget_bytes);
  }
  if (tiers == offload_text(given))
    return tiers.empty() ? "no --offload is needed: the plan fits" : "--offload " + tiers + ", as given, fits";
  std::string out = "--offload " + tiers;
  if (proposed.tier_folder.empty() && !given.tier_folder.empty())
    out += " without --tier-dir";
  else if (proposed.tier_folder != given.tier_folder)
    out += " --tier-dir " + proposed.tier_folder;
  out += ": fits, rehearsed; a rank needs at most ";
  const by_tier needed = needed_by(planned);
  bool first = true;
  for (std::size_t t = 0; t < needed.size(); ++t)
    if (needed[t] > 0)
      out += (std::exchange(first, false) ? "" : ", ") + exact_bytes(needed[t]) + " of tier " +
             belay::name(static_cast<tier>(t));
  return out;
}

}  // namespace train_moe
