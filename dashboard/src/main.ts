import './design/tokens.css';
import './design/base.css';

import { mount } from 'svelte';

import App from './app/App.svelte';

const target = document.getElementById('app');
if (target) mount(App, { target });
