#include "common/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cmath>
#include <limits>
#include <list>
#include <utility>

namespace quire {

struct MetricsPage::Impl {
  prometheus::Registry registry;
  mutable std::mutex
      mutex;  // guards readers; held while they read, so that a dead one is not called
  std::list<Reader> readers;
};

MetricsPage::MetricsPage() : impl_(std::make_unique<Impl>()) {}
MetricsPage::~MetricsPage() = default;

prometheus::Counter& MetricsPage::AddCounter(const std::string& name, const std::string& help,
                                             const MetricLabels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(impl_->registry).Add(labels);
}

prometheus::Gauge& MetricsPage::AddGauge(const std::string& name, const std::string& help,
                                         const MetricLabels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(impl_->registry).Add(labels);
}

prometheus::Histogram& MetricsPage::AddHistogram(const std::string& name, const std::string& help,
                                                 const std::vector<double>& bounds,
                                                 const MetricLabels& labels) {
  return prometheus::BuildHistogram()
      .Name(name)
      .Help(help)
      .Register(impl_->registry)
      .Add(labels, prometheus::Histogram::BucketBoundaries(bounds.begin(), bounds.end()));
}

std::shared_ptr<void> MetricsPage::AddReader(Reader read) {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  const auto it = impl_->readers.insert(impl_->readers.end(), std::move(read));
  return std::shared_ptr<void>(nullptr, [impl = impl_.get(), it](void*) {
    const std::lock_guard<std::mutex> erase_lock(impl->mutex);
    impl->readers.erase(it);
  });
}

std::string MetricsPage::Text() const {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < families.size(); ++i) by_name[families[i].name] = i;
  std::vector<MetricSample> samples;
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    for (const Reader& read : impl_->readers) read(&samples);
  }
  for (const MetricSample& sample : samples) {
    const auto [it, is_new] = by_name.emplace(sample.name, families.size());
    const bool is_counter = sample.kind == MetricSample::Kind::kCounter;
    if (is_new) {
      families.push_back(
          {sample.name,
           sample.help,
           is_counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge,
           {}});
    }
    prometheus::ClientMetric metric;
    for (const auto& [key, value] : sample.labels) metric.label.push_back({key, value});
    (is_counter ? metric.counter.value : metric.gauge.value) = sample.value;
    families[it->second].metric.push_back(std::move(metric));
  }
  return prometheus::TextSerializer().Serialize(families);
}

const std::vector<double>& LatencyBounds() {
  static const std::vector<double> bounds = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
                                             0.5,   1,     2,     5,    10,   20,   60,  120};
  return bounds;
}

const std::vector<double>& ShortLatencyBounds() {
  static const std::vector<double> bounds = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4,
                                             2e-4, 5e-4, 1e-3, 1e-2, 0.1,  1};
  return bounds;
}

void SlidingRatio::Update(TimeUs now, int64_t hits, int64_t asked) {
  now_ = {now, hits, asked};
  if (now - points_.back().time_us >= grain_us_) points_.push_back(now_);
  // The front is the youngest point that is at least a window old.
  while (points_.size() > 1 && now - points_[1].time_us >= window_us_) points_.pop_front();
}

double SlidingRatio::ratio() const {
  if (asked() <= 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(now_.hits - points_.front().hits) / static_cast<double>(asked());
}

int64_t SlidingRatio::asked() const { return now_.asked - points_.front().asked; }

}  // namespace quire
