// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The name of the algorithm that the library uses, by the library's own rule.
#pragma once

#include <cstddef>
#include <string>

#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "collectives/operation.hpp"
#include "collectives/options.hpp"

namespace bench {

/// The one that is forced, or none. Throws input_error for a name that is none.
[[nodiscard]] inline belay::host::algorithm forced_algorithm(const options& what) {
  return what.algorithm == "auto" ? belay::host::algorithm::automatic : belay::host::algorithm_named(what.algorithm);
}

/// The choice of the tuner, over the static rule.
[[nodiscard]] inline std::string text_of(belay::host::variant found, const std::string& usual) {
  const std::string name = found.how == belay::host::algorithm::automatic ? usual : belay::host::name(found.how);
  return found.by == belay::memory_access::automatic ? name : name + ", " + belay::name(found.by);
}

/// Of a call of this size, in place or not.
[[nodiscard]] inline std::string algorithm_of(const options& what, op which, extent size, bool in_place) {
  if (what.as == "mpi") return "messages";
  if (which == op::barrier) return belay::host::name(belay::host::algorithm::flag_line);
  if (which == op::send_recv) return what.as == "threads" || what.buffers == "symmetric" ? "pull" : "letter";
  const std::size_t element = element_bytes(what.type), each = size.count * element, all = size.elements() * element;
  const belay::host::algorithm forced = forced_algorithm(what);
  // The input of a rank is one part here, elsewhere all.
  const bool part = which == op::all_gather || which == op::gather;
  const bool counts = which == op::all_gather_v || which == op::reduce_scatter_v || which == op::all_to_all_v;
  using belay::host::eager_traffic;
  const bool in_parts = which == op::all_to_all || which == op::reduce_scatter;
  const eager_traffic traffic = has_root(which) ? eager_traffic::root
                                : in_parts      ? eager_traffic::all_in_parts
                                                : eager_traffic::all;
  const belay::host::algorithm small =
      belay::host::choose_small(forced, part ? each : all, element, what.ranks, traffic);
  if (!counts && small != belay::host::algorithm::automatic) return belay::host::name(small);
  const std::size_t most_eager = belay::host::eager_buffer_bytes(what.ranks);
  const bool unaddressable =
      what.as == "processes" && what.buffers == "ordinary" && (which == op::all_reduce || which == op::all_gather);
  const bool eager =
      (which == op::all_to_all_v && all <= most_eager) || (unaddressable && (part ? each : all) <= most_eager);
  if (eager && forced == belay::host::algorithm::automatic)
    return belay::host::name(belay::host::algorithm::eager_buffer);
  const std::size_t bytes = which == op::gather || which == op::scatter ? each : all;
  belay::host::selection_input known;
  known.forced = forced;
  known.direct = what.as == "threads" || what.buffers == "symmetric";
  known.cma_possible = true;  // as the library finds where it may
  known.slices = which == op::all_reduce;
  known.root_reduces = which == op::reduce;
  known.in_place = in_place;
  const belay::host::algorithm chosen = belay::host::choose(known, bytes);
  if (which == op::all_reduce) return belay::host::name(chosen);
  const bool stores = chosen == belay::host::algorithm::push || chosen == belay::host::algorithm::one_shot;
  // What moves is stored into the peers or fetched from them; what ends on one rank is fetched by that rank.
  const bool rooted = which == op::broadcast || which == op::scatter;
  const bool gathers = which == op::all_gather || which == op::all_gather_v || which == op::gather;
  const bool changes_places = which == op::all_to_all || which == op::all_to_all_v;
  const bool free_root = which == op::broadcast || in_place;
  const std::size_t most = free_root ? belay::host::most_stored_by_free_root : belay::host::most_stored_by_root;
  const bool root_stores = rooted && what.ranks == 2 && bytes <= most;
  if (stores) return root_stores || gathers || (changes_places && !in_place) ? "push" : "pull";
  return belay::host::name(chosen);
}

}  // namespace bench
