// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank's part of a network as a stage of a pipeline. The network offers its layers; the stage runs them, and keeps
// their handles between forward and backward. Which layers are run again in the backward is a function of their number.
//
//   belay::pipeline_stage stage{net};                                               // keeps what every layer keeps
//   belay::pipeline_stage lean{net, belay::recompute_all{}};                        // keeps their outputs alone
//   belay::pipeline_stage mixed{net, [](std::size_t layer) { return layer % 2 == 0; }};
//   belay::pipeline_stage small{net, belay::recompute_all{}, activations};          // and these in a lower tier
//   pipeline.run(step, stage, tokens, loss);                                        // see parallel/pipeline.hpp
#pragma once

#include <any>
#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/pipeline_stage/handles.hpp"
#include "belay/parallel/pipeline_stage/network.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {

/// Which layers a stage computes again in the backward: none, or all.
struct recompute_none {
  /// No layer.
  [[nodiscard]] constexpr bool operator()(std::size_t) const noexcept { return false; }
};
/// Recomputes all layers.
struct recompute_all {
  /// Every layer.
  [[nodiscard]] constexpr bool operator()(std::size_t) const noexcept { return true; }
};

/// A network as a stage of a pipeline. It stays where it was made. The memory for handles is allocated by the first
/// run; afterwards a step allocates nothing.
template <class Network, class Activations = void>
class pipeline_stage {
  static_assert(
      is_offering_layers<Network>,
      "belay: a pipeline stage is made of a network that offers its layers: layers() gives a range of them by "
      "reference, and first() and last(), where there are such, what runs before and after them");

 public:
  using network_type = Network;

  /// `network` outlives the stage. No layer is recomputed.
  explicit pipeline_stage(Network& network)
    requires std::is_void_v<Activations>
      : pipeline_stage(network, recompute_none{}) {}
  /// `recomputes(number)` says of every layer, once, whether it is recomputed: its number is what `layer.index()` says,
  /// or its place in the stage.
  template <std::predicate<std::size_t> Rule>
    requires std::is_void_v<Activations>
  pipeline_stage(Network& network, Rule&& recomputes) : network_(&network) {
    add_layers(recomputes);
  }
  /// Activations of the layers, and the outputs between them, are in the tier of `activations`, which outlive the
  /// stage, from forward to backward; those of last() stay on the device. `recomputes(number)` says of every layer,
  /// once, whether it is recomputed. See step/offloaded_activations.hpp.
  template <std::predicate<std::size_t> Rule, class Offloaded = Activations>
    requires(!std::is_void_v<Activations>)
  pipeline_stage(Network& network, Rule&& recomputes, Offloaded& activations) : network_(&network) {
    layers_.activations = &activations;
    add_layers(recomputes);
  }
  pipeline_stage(const pipeline_stage&) = delete;  // handles point into it
  pipeline_stage& operator=(const pipeline_stage&) = delete;

  /// The network, and how many layers of it this stage has.
  [[nodiscard]] Network& network() const noexcept { return *network_; }
  [[nodiscard]] std::size_t layers() const noexcept { return layers_.places.size(); }

  /// For `pipeline`: the handles for a schedule. Throws usage_error where the network is no part for this stage.
  template <class Engine, class T, std::size_t Rank, class Input>
  [[nodiscard]] auto& handles(const schedule::position& place, where at) {
    using handles_type = stage_handles<Network, Engine, T, Rank, Input, Activations>;
    auto* kept = std::any_cast<std::shared_ptr<handles_type>>(&handles_);
    if (kept == nullptr || (*kept)->place() != place) {
      expect_part(place, at);
      kept = &handles_.emplace<std::shared_ptr<handles_type>>(
          std::make_shared<handles_type>(*network_, layers_, place));
    }
    return **kept;
  }

  /// Throws usage_error where the network is no part for a stage at `place`.
  void expect_part(const schedule::position& place, where at) const {
    const auto expect = [&](bool has, bool needed, const char* what) {
      if (has != needed) refuse(place, std::string(has ? "has " : "lacks ") + what, at);
    };
    if constexpr (requires { network_->has_embedding(); })
      expect(network_->has_embedding(), place.first(), "the embedding, which is the first stage's");
    if constexpr (requires { network_->has_head(); })
      expect(network_->has_head(), place.last(), "the head, which is the last stage's");
    if (layers_.places.empty() && !place.first() && !place.last()) refuse(place, "has no layers", at);
  }

 private:
  using layer_type = typename layers_of<Network>::layer_type;

  template <class Rule>
  void add_layers(Rule&& recomputes_layer) {
    std::size_t number = 0;
    for (auto& layer : network_->layers())
      layers_.add(layer, recomputes_layer(number_of(layer, number++)) ? recomputes::yes : recomputes::no);
  }
  [[nodiscard]] static std::size_t number_of(const layer_type& layer, std::size_t place) noexcept {
    if constexpr (requires {
                    { layer.index() } -> std::convertible_to<std::size_t>;
                  })
      return layer.index();
    else
      return place;
  }

  [[noreturn]] static void refuse(const schedule::position& place, const std::string& why, where at) {
    throw usage_error("stage " + std::to_string(place.stage) + " of a pipeline of " + std::to_string(place.stages) +
                          ": its part of the network " + why,
                      at);
  }

  Network* network_;
  layers_of<Network, Activations> layers_;
  std::any handles_;  // of the micro-batches: the first run tells their types
};

template <class Network>
pipeline_stage(Network&) -> pipeline_stage<Network>;
template <class Network, class Rule>
pipeline_stage(Network&, Rule&&) -> pipeline_stage<Network>;
template <class Network, class Rule, class Activations>
pipeline_stage(Network&, Rule&&, Activations&) -> pipeline_stage<Network, Activations>;

}  // namespace belay::inline BELAY_ABI
