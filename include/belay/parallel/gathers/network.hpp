// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A network whose layers gather their parameters: it offers the layers of another one, each wrapped in `gathers`, and
// so is a network for a pipeline stage.
//
//   belay::parameter_store store{run, mesh, net, belay::zero<3>{}};
//   belay::gathering_network whole{net, store};
//   belay::pipeline_stage stage{whole};
// IWYU pragma: private, include "belay/parallel/gathers.hpp"
#pragma once

#include <deque>
#include <optional>
#include <type_traits>
#include <variant>

#include "belay/core/config.hpp"
#include "belay/parallel/gathers/layer.hpp"
#include "belay/parallel/pipeline_stage/network.hpp"

namespace belay::inline BELAY_ABI {

/// A layer that a network may offer before or after its others, wrapped; or nothing.
template <class Layer, class Store>
struct wrapped_layer {
  using type = gathers<Layer, Store>;
};
template <class Store>
struct wrapped_layer<void, Store> {
  using type = std::monostate;
};

/// `network` and `store` outlive it.
template <offers_layers Network, class Store>
class gathering_network {
 public:
  using layer_type = gathers<typename layers_of<Network>::layer_type, Store>;
  using first_type = typename wrapped_layer<typename first_of<Network>::type, Store>::type;
  using last_type = typename wrapped_layer<typename last_of<Network>::type, Store>::type;

  gathering_network(Network& network, Store& store) : network_(&network) {
    if constexpr (offers_first<Network>)
      if (has_embedding()) first_.emplace(network.first(), store);
    for (auto& layer : network.layers()) layers_.emplace_back(layer, store);
    if constexpr (offers_last<Network>)
      if (has_head()) last_.emplace(network.last(), store);
  }
  gathering_network(const gathering_network&) = delete;  // handles point into it
  gathering_network& operator=(const gathering_network&) = delete;

  [[nodiscard]] Network& network() const noexcept { return *network_; }
  [[nodiscard]] std::deque<layer_type>& layers() noexcept { return layers_; }
  [[nodiscard]] first_type& first() requires offers_first<Network> { return *first_; }
  [[nodiscard]] last_type& last() requires offers_last<Network> { return *last_; }
  [[nodiscard]] bool has_embedding() const noexcept requires offers_first<Network> {
    if constexpr (requires { network_->has_embedding(); })
      return network_->has_embedding();
    else
      return true;
  }
  [[nodiscard]] bool has_head() const noexcept requires offers_last<Network> {
    if constexpr (requires { network_->has_head(); })
      return network_->has_head();
    else
      return true;
  }

 private:
  Network* network_;
  std::deque<layer_type> layers_;
  std::optional<first_type> first_;
  std::optional<last_type> last_;
};

}  // namespace belay::inline BELAY_ABI
